"""Serves REST: the list of routes, the listeners, and the switch between leader and standby."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
