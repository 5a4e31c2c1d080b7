"""The RPC interfaces of JobManagers, ShuffleManagers and ShuffleWorkers, and a JobManager's link to the service."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
