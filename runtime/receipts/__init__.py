"""Receipts of ended jobs: signed statements of what ran, who was allowed to run it, and what it was seen to do."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
