"""Secrets of jobs: encrypted in the HA storage, granted by name, given to attempts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
