"""The ledger of issued certificates.

Hash-chained records, its file, and what was issued while the authority was offline.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
