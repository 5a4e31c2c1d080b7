"""Attestors: they verify to the online authority the identity of a process that has no certificate yet."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
