"""The processes of the auth service, the relay and Envoy: their HTTP and gRPC interfaces, and composition."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
