"""The metrics of a process: its Prometheus registry, samples made on collection, and the socket that serves both."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
