"""Receives submissions: their files, from the request or from allowed stores, and the admission by the gateway."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
