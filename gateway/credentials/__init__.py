"""Credentials: API tokens, sessions, users and short-lived access tokens; how they are made, stored and revoked."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
