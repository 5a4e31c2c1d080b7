"""What a JobManager asks the auth service of another machine, over mutual TLS."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
