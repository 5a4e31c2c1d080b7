"""How programs in a box find hosts: a resolver that gives names addresses of its own, and files for it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
