"""The blob store and server: content-addressed artifacts over HTTPS with mutual TLS."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
