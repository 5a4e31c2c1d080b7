"""Envoy driven by our own xDS server: what it serves, whom it admits, whom it sends where."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
