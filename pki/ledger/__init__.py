"""The ledger of issued certificates: hash-chained records, their file, and notes of offline issuance."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
