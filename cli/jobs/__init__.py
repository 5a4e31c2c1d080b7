"""``sluice submit``, ``jobs``, ``savepoints``, ``shuffle``, ``connect``: work on a cluster through the gateway."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
