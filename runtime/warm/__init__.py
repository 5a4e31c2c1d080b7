"""A pool of processes that wait for jobs: how many wait, when they are started, and when they go."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
