"""Creates class archives for Spark's JVMs: runs a rehearsal of a job, and archives the classes that it loaded."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
