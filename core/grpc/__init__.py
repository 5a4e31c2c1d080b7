"""The gRPC server of the agent (Workload API, SDS) and of the gateway (xDS): framing, limits, and who may connect."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
