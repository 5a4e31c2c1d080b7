"""What a streaming job has committed, where its checkpoint is, and how it goes on from it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
