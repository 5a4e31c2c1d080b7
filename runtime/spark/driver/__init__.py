"""The driver of a job: its agent, its JVM and Python processes, and the connection to the JobMaster."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
