"""The insider audit: a submitted job tries what a hostile tenant's code could reach."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
