"""Leader election and pointers in a Kubernetes API server: a Lease and a ConfigMap."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
