"""Validation of challenges: where the authority connects, and what a host must show (RFC 8555, section 8)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
