"""Enforces the limits of a box: with control groups, and with a watcher for what they cannot limit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
