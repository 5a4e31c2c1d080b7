"""The ShuffleManager: which workers there are, who may use them, and what becomes of a job's data."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
