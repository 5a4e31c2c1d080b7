"""Making the archives of classes with which Spark's JVMs start: a job is rehearsed, and what it loaded is archived."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
