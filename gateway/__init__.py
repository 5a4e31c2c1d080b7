"""The auth service behind Envoy: authentication, authorization, audit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
