"""The messages between the processes of a cluster: declared, bounded types (msgspec).

Decoding executes no code, and every field has a declared type. The RPC layer's envelope limit bounds the size.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
