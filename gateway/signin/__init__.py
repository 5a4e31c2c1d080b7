"""Handlers under ``/auth/``: sign-in, sign-out, short-lived access tokens, and the device codes of ``sluice login``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
