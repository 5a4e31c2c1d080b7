"""Sockets of programs in a box, as the kernel shows them to a process outside."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
