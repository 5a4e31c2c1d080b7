"""The protocol between workers and those who push and fetch: frames, errors, check values. No I/O."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
