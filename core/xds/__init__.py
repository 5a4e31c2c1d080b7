"""Envoy's xDS protocol, state of the world: messages, subscriptions, the stream, and secrets (SDS).

The agent serves secrets with it, the gateway everything that Envoy is configured with. Which resources a caller gets is
theirs to say, as a :class:`~sluice.core.xds.stream.Source`.
"""
