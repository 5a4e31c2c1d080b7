"""Connections of jobs to the outside: gathered from those beside the boxes, recorded and decided by the gateway."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
