"""What a submission brings: its files, from the request or from allowed stores, and who was admitted with it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
