"""The network of a job's sandbox: it reaches the job's other processes, shuffle workers, and what the policy allows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
