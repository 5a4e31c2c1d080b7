"""Decides for Envoy whether a job may connect to an external destination."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
