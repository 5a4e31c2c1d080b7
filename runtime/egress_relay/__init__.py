"""The egress relay: one Envoy per TaskManager that forwards the connections of jobs to the gateway."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
