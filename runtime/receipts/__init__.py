"""Receipts of ended jobs: signed statements of what ran, who was authorized to run it, and what was observed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
