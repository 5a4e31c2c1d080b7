"""TaskManagers as pods of Kubernetes: how many there should be, what they are, and who makes and deletes them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
