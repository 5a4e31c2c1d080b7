"""TLS on the wire, as an audit needs it: hellos that no library sends, and a TLS 1.3 client that reports everything.

Python's ssl cannot offer a single group, suite or signature scheme, says nothing about certificate requests, session
tickets or early data, and hides alerts. Nothing here protects anything: it must never carry a secret.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
