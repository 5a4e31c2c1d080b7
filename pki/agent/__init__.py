"""The agent of a node: renews identities, and serves them over the SPIFFE Workload API and Envoy SDS."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
