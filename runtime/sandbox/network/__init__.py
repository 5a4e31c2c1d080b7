"""The private network of a job's boxes: a network namespace that connections leave only as the rules allow."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
