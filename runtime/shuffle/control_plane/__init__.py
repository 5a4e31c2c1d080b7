"""What JobManagers, ShuffleManagers and ShuffleWorkers say to each other over RPC, and a JobManager's link to it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
