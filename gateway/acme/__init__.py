"""ACME client (RFC 8555): obtains and renews the certificate that the gateway presents to browsers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
