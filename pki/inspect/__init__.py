"""Describes certificates, keys, listeners and homes for people, and finds problems with remedies."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
