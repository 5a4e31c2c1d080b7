"""How a job's process proves who it is to others: the SPIFFE Workload API in its box, and token files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
