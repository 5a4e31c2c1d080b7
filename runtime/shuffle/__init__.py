"""The remote shuffle service: it keeps the shuffle data of Spark jobs outside their executors."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
