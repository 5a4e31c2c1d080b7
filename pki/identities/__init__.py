"""The identities of processes on disk: directories and databases of them, and when each is due for renewal."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
