"""The reverse proxy: the Envoy process, the configuration published to it, and NGINX as an alternative."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
