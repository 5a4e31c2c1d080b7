"""The durable state of jobs in the HA storage, from which the next leader recovers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
