"""The processes of jobs on a TaskManager: drivers and executors, launched, watched and ended."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
