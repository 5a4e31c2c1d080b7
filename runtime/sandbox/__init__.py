"""The box that a job's processes run in: namespaces, a uid of its own, seccomp, Landlock, limits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
