"""Processes that wait on a TaskManager for a job, to become its driver or an executor."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
