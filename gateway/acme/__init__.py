"""A client of ACME (RFC 8555): it gets and renews the certificate that the gateway shows to browsers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
