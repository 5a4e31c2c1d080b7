"""Attestors: how a process proves to the online authority who it is, when it has no certificate yet."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
