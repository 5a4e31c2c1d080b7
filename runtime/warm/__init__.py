"""The pool of warm processes that wait for jobs: how many there are, and when they are started and ended."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
