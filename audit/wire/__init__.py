"""TLS on the wire for audits: hellos that no library sends, and a TLS 1.3 client that reports everything.

Python's ssl cannot offer a single group, suite or signature scheme, does not report certificate requests, session
tickets or early data, and hides alerts. This client is not secure: never send a secret over it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
