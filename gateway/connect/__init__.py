"""Spark Connect through the gateway: each principal reaches a session of its own, as itself, and nothing else."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
