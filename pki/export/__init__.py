"""Exports identities in the formats of other programs, with their configuration."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
