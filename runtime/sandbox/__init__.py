"""The sandbox ("box") for the processes of a job: namespaces, a separate uid, seccomp, Landlock, limits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
