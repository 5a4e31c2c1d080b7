"""Submissions to Spark's own cluster managers, YARN and Kubernetes, with Sluice's TLS."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
