"""The ShuffleManager: registers workers, allocates them to shuffles, and ends the jobs whose data they keep."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
