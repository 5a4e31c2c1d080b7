"""What the processes of a cluster say to each other: declared, bounded message types (msgspec).

Nothing here executes when decoded; every field has a declared type. Sizes are bounded by the
RPC layer's envelope limit.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
