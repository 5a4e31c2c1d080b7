"""The audit log: an append-only hash chain in segments, signed, verified and followed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
