"""The network of a job's boxes: a namespace of its own, from which connections lead out only as rules say."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
