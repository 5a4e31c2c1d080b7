"""Assembles Envoy's complete configuration, except secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.core import EgressConfig
from sluice.core.xds import CLUSTER, EXTENSION, LISTENER, ROUTES, Resources, from_json
from sluice.gateway.authz import Route
from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.acme import acme_clusters, http_challenge_listeners, with_tls_challenges
from sluice.gateway.envoy_config.certificate_file import with_certificate_file
from sluice.gateway.envoy_config.clusters import edge_clusters
from sluice.gateway.envoy_config.egress import egress_clusters, egress_listeners
from sluice.gateway.envoy_config.filters import ACCESS_TOKEN, REVOCATIONS, access_token_filter
from sluice.gateway.envoy_config.http3 import EDGE_QUIC, quic_listener
from sluice.gateway.envoy_config.listeners import EDGE, edge_listener
from sluice.gateway.envoy_config.revocations import revocation_filter
from sluice.gateway.envoy_config.routes import Grants, route_configuration
from sluice.gateway.envoy_config.tracing import Collector, collector_clusters
from sluice.gateway.upstreams import Upstreams


@dataclass(frozen=True, slots=True)
class EdgeInputs:
    """The inputs of the configuration.

    Attributes:
        listener_source: ``envoy/listener.jsonc``.
        routes: the routes that REST publishes.
        collector: the destination of spans; None when tracing is off.
        egress: the egress settings of jobs, with the effective mode.
    """

    config: GatewayConfig
    trust_domain: str
    upstreams: Upstreams
    listener_source: object
    routes: tuple[Route, ...]
    grants: Grants
    collector: Collector | None = None
    egress: EgressConfig = field(default_factory=EgressConfig)


def edge_documents(inputs: EdgeInputs) -> dict[str, dict[str, dict[str, object]]]:
    """Clusters, listeners and routes in JSON, by kind and name. They contain no secrets."""
    listeners = {EDGE: edge_listener(inputs.listener_source, inputs.config, inputs.collector)}
    if inputs.config.http3:
        listeners[EDGE_QUIC] = quic_listener(listeners[EDGE], inputs.config)
    listeners = {name: with_certificate_file(each, inputs.config) for name, each in listeners.items()}
    listeners[EDGE] = with_tls_challenges(listeners[EDGE], inputs.config)
    listeners |= http_challenge_listeners(inputs.config)
    listeners |= egress_listeners(inputs.egress, inputs.trust_domain, shared=inputs.config.envoys > 1)
    routes = route_configuration(inputs.config, inputs.routes, inputs.grants)
    clusters = [
        *edge_clusters(inputs.config, inputs.trust_domain, inputs.upstreams),
        *collector_clusters(inputs.collector),
        *egress_clusters(inputs.egress),
        *acme_clusters(inputs.config),
    ]
    return {
        CLUSTER: {str(each["name"]): each for each in clusters},
        LISTENER: listeners,
        ROUTES: {EDGE: routes},
    }


def edge_resources(documents: Mapping[str, Mapping[str, Mapping[str, object]]]) -> dict[str, Resources]:
    """The documents as messages; raises :class:`~sluice.core.xds.messages.XdsError` when Envoy could not read one."""
    return {
        kind: Resources.of({name: from_json(kind, document) for name, document in by_name.items()})
        for kind, by_name in documents.items()
    }


def extension_resources(jwks: Mapping[str, object], revoked: Iterable[tuple[str, str]]) -> dict[str, Resources]:
    """Filter configuration that also applies to open connections: access token keys, and revoked (kind, id) pairs."""
    access_tokens = from_json(EXTENSION, access_token_filter(json.dumps(jwks)))
    return {EXTENSION: Resources.of({ACCESS_TOKEN: access_tokens, REVOCATIONS: revocation_filter(revoked)})}
