"""Copies of the audit log for receivers outside: in order, at least once, from a position kept on disk."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
