"""Requests of a JobManager to an auth service on another machine, over mutual TLS."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
