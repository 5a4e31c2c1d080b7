"""The history: records and logs of ended jobs, kept after the JobManager has removed them from memory."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
