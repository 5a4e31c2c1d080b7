"""Checkpoints and savepoints of streaming jobs: where they are, what is committed, and how a job resumes from them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
