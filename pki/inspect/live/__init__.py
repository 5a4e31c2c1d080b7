"""Inspects a TLS listener from outside: its certificates, its requirements, and its problems."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
