"""The base that all other packages use.

Errors, files, the home, tasks, logging, metrics, tracing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
