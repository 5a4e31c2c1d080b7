"""The clusters: the auth service, REST, and the relay for Spark Connect."""

from __future__ import annotations

from sluice.gateway.config import GatewayConfig
from sluice.gateway.connect import connect_cluster
from sluice.gateway.envoy_config.json_values import seconds
from sluice.gateway.upstreams import Legs, cluster

REST_CONNECT_TIMEOUT_SECONDS = 5.0
MAX_REST_REQUESTS = 256
"""Connections to REST and requests under way there; more are refused with 503."""
BUFFER_BYTES = 256 << 10
MAX_AUTH_RETRIES = 1024
"""Questions that are asked again at the same time; Envoy's own limit is 3."""


def edge_clusters(config: GatewayConfig, trust_domain: str, legs: Legs) -> list[dict[str, object]]:
    """CDS, in JSON."""
    lifetime = seconds(config.max_upstream_seconds)
    limits = {
        "max_connections": MAX_REST_REQUESTS,
        "max_pending_requests": MAX_REST_REQUESTS,
        "max_requests": MAX_REST_REQUESTS,
    }
    return [
        cluster(
            "auth",
            legs.auth,
            trust_domain,
            connect_timeout=seconds(config.authorization_timeout),
            max_connection_duration=lifetime,
            replicas=legs.more_auth,
            # None is left out after failures: by then it has been started again, and the next to end may be the one
            # that is left.
            circuit_breakers={"thresholds": [{"max_retries": MAX_AUTH_RETRIES}] if legs.more_auth else []},
        ),
        cluster(
            "rest",
            legs.rest,
            trust_domain,
            connect_timeout=seconds(REST_CONNECT_TIMEOUT_SECONDS),
            max_connection_duration=lifetime,
            per_connection_buffer_limit_bytes=BUFFER_BYTES,
            circuit_breakers={"thresholds": [limits]},
        ),
        connect_cluster(legs.connect, trust_domain),
    ]
