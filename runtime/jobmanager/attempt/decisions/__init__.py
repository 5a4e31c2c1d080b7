"""What an attempt does next: its state machine and the parts of it. Events in, actions out; no I/O."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
