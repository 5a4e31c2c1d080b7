"""Spark Connect through the gateway: a relay that lets each principal reach only its own session."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
