"""Keeping a box within its limits: control groups, and a watcher for what they cannot bound."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
