"""The HTTP protocol of REST: routes, authentication of callers, problems, pagination, and event streams."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
