"""What every process of a cluster does: addresses, child processes, logs, identity renewal, finding the leader."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
