"""State that several auth services share: short-lived entries, and across machines also their credential files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
