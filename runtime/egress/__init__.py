"""Connections that leave the sandboxes of jobs: limits, journal, and reports to the JobManager."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
