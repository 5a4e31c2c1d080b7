"""JWT-SVIDs: tokens of the trust domain, their signing keys, and the published bundle."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
