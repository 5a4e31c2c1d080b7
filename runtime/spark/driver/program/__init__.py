"""The program of a driver: its files, its directories, and its JVM and Python processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
