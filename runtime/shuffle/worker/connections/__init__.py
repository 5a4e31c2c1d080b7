"""The listener of the data channel, and its connections, one thread each: pushes, fetches, and fetches that follow."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
