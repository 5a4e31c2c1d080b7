"""The connections below the calls: gRPC streams over mutual TLS, batches, and limits of what is in flight."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
