"""Certificate revocation lists (CRLs): signing, storing, distributing to identity directories, and loading."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
