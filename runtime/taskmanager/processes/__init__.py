"""The processes of jobs on a TaskManager: launches, watches and ends drivers and executors."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
