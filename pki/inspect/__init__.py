"""Certificates, keys, listeners and homes as people see them: descriptions and problems with remedies."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
