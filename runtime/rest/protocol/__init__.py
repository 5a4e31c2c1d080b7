"""How REST speaks HTTP: routes, who asks, problems, pages of lists, and event streams."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
