"""Exports the audit log to external receivers: in order, at least once, from a position stored on disk."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
