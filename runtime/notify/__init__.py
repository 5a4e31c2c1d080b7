"""Tells people what needs them: by webhook and e-mail, once each, at least once, with what to do."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
