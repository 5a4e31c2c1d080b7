"""Warm processes: they wait on a TaskManager to become the driver or an executor of a job."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
