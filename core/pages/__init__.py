"""The look of Sluice's pages, shared by REST and the auth service: templates, a stylesheet, scripts. No data."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
