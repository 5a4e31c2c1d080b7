"""What a box of a job reaches beyond itself: its job's other processes and shuffle workers, and what policy allows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
