"""The gateway's signed assertions: how they are made and verified, and how long a stream may rely on one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
