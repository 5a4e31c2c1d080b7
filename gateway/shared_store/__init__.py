"""Short-lived state that several auth services share: sign-ins under way, codes that are good once, failures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
