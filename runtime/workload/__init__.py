"""The identity of a job's process toward other services: the SPIFFE Workload API in its sandbox, and token files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
