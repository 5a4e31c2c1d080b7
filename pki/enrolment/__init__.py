"""The client side of the online authority: enrolling, renewing, and following changes of trust."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
