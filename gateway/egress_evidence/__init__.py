"""Records external connections of jobs in the audit log, and checks open ones against the current policy."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
