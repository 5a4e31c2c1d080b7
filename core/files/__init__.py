"""Files: trusted ones and those that a job may write, detection of changes, locks, databases, hash-chained logs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
