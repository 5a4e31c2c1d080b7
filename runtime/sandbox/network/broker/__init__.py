"""The broker outside the boxes: answers their ``connect`` and ``listen`` calls, and tracks their connections."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
