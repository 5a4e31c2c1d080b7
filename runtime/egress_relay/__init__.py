"""The relay between the connections of jobs and the gateway: one Envoy for each TaskManager."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
