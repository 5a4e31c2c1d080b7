"""JWT-SVIDs: tokens of the trust domain, the keys that sign them, and what is published of these."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
