"""Distributes trust anchors and CRLs to identity directories, and reports what running processes have loaded."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
