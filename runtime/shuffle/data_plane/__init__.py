"""The protocol between shuffle workers and their clients, which push and fetch: frames, errors, checksums. No I/O."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
