"""The REST API of a JobManager, behind the gateway: resources, protocol, and requests to the auth service."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
