"""Issuing: one engine that signs leaves, and local issuers of one identity or an inventory on top of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
