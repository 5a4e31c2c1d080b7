"""Mutual TLS: contexts, listeners, bulk streams, and a record of open connections."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
