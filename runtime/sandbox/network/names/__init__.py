"""Name resolution in a box: a resolver that assigns private addresses to host names, and the files that point to it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
