"""The client of a cluster: REST calls through the gateway, with the user's credential."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
