"""Notifies people of events that need action, by webhook and e-mail, with at-least-once delivery."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
