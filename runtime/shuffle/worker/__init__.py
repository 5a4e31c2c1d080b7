"""The shuffle worker: takes what maps push, keeps it by partition, and serves it to readers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
