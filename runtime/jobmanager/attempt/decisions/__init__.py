"""The state machine of an attempt, and its parts. Events in, actions out; no I/O."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
