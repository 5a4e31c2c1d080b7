"""The insider audit: what a tenant's code reaches from inside its own job, tried by a job that is submitted for it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
