"""Certificate authorities: signing, their keys on disk, which of them are trusted, and the phases of their rotation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
