"""Examines a live cluster: every listener, every hostile case, with evidence of requests and answers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
