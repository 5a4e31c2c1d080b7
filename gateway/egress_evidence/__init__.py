"""Connections of jobs to the outside: into the audit log, and decided again by the policy of now."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
