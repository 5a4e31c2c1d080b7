"""RPC between actors over gRPC with mutual TLS: endpoints, typed proxies, fencing, and streams between processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
