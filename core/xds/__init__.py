"""Envoy's xDS protocol, state of the world: messages, subscriptions, the stream, and secrets (SDS).

The agent serves secrets with it, the gateway Envoy's whole configuration. A :class:`~sluice.core.xds.stream.Source`
decides which resources a caller gets.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
