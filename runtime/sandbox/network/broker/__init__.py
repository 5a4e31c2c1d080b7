"""The broker outside of the boxes: answers their calls of ``connect`` and ``listen``, and follows their connections."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
