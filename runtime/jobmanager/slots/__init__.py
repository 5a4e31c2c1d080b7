"""The ResourceManager: which TaskManagers there are, and which job gets which of their slots."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
