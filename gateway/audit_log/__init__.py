"""The audit log: an append-only, signed hash chain in segment files. Code to write, verify and follow it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
