"""Secrets of jobs: stored encrypted in the HA storage, granted to jobs, and given to their attempts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
