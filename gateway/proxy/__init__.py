"""The reverse proxy in front: Envoy's process, what is published to it, and NGINX in its place."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
