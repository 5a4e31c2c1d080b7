"""Outgoing connections of jobs: TaskManagers report them, and the gateway records them and decides about them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
