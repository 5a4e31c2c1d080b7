"""Compares a changed policy with the recorded decisions in an audit log."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
