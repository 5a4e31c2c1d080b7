"""Masking: replaces secret values in the output of jobs and in messages about them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
