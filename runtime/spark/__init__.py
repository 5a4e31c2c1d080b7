"""Launches Spark drivers and executors, and builds the Scala plugin that integrates Spark."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
