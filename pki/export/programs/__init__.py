"""Ready-made configuration for other programs that take a Sluice identity: one module per program."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
