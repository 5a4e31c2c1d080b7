"""Certificate authorities: signing, keys on disk, which ones are trusted, and the phases of a rotation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
