"""Keys, certificates and requests as values: profiles, names, parsing, verification, key stores. No I/O."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
