"""Masking: values that must not appear in what a job prints, or in what is told of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
