"""The storage of a worker: its memory, its disks, and the state of map outputs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
