"""The resources of REST, one module each: handlers and the ``ROUTES`` to them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
