"""The data plane's client in Python: pushes map outputs, reads them, and follows shuffles while they are written."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
