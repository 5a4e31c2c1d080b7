"""Launching Spark drivers and executors, and the Scala plugin that ties Spark in."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
