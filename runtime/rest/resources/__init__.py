"""The resources of REST, one per module: handlers and their ``ROUTES``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
