"""Signed statements that anybody can verify without a network: DSSE envelopes, and proofs from the audit log."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
