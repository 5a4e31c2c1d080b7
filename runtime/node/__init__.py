"""Services that every process of a cluster needs: addresses, child processes, logs, identity renewal, leader lookup."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
