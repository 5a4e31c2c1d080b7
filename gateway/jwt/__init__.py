"""JSON Web Tokens of external issuers: keys, signatures and claims."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
