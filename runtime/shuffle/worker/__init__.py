"""The shuffle worker: stores the segments that map tasks push, grouped by partition, and serves them to readers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
