"""What is kept of ended jobs after the JobManager has forgotten them: their records and logs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
