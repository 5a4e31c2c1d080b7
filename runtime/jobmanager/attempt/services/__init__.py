"""What the JobMasters of a process share: starting drivers, signing identities, tokens and secrets of jobs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
