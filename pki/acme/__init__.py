"""The online authority as an ACME server (RFC 8555): certificates for servers outside Sluice."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
