"""Envoy's xDS protocol, state of the world: messages, subscriptions, the stream, and secrets (SDS).

The agent serves secrets with it, the gateway everything that Envoy is configured with. Which resources a caller gets is
theirs to say, as a :class:`~sluice.core.xds.stream.Source`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
