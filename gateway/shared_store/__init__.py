"""What several auth services share: short-lived state, and on several machines their credential files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
