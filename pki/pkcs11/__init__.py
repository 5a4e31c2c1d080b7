"""Keys in tokens: references to them (RFC 7512), sessions, and keys that sign in the token (PKCS#11)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
