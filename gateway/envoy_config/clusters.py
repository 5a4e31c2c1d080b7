"""The upstream clusters: the auth service, REST, and the Spark Connect relay."""

from __future__ import annotations

from sluice.gateway.config import GatewayConfig
from sluice.gateway.connect import connect_cluster
from sluice.gateway.envoy_config.json_values import seconds
from sluice.gateway.upstreams import Upstreams, cluster

REST_CONNECT_TIMEOUT_SECONDS = 5.0
MAX_REST_REQUESTS = 256
"""Maximum number of connections and of concurrent requests to REST; more are refused with 503."""
BUFFER_BYTES = 256 << 10
MAX_AUTH_RETRIES = 1024
"""Maximum number of concurrent retries of authorization checks; Envoy's default is 3."""


def edge_clusters(config: GatewayConfig, trust_domain: str, upstreams: Upstreams) -> list[dict[str, object]]:
    """The clusters for CDS, in JSON."""
    lifetime = seconds(config.max_upstream_seconds)
    limits = {
        "max_connections": MAX_REST_REQUESTS,
        "max_pending_requests": MAX_REST_REQUESTS,
        "max_requests": MAX_REST_REQUESTS,
    }
    return [
        cluster(
            "auth",
            upstreams.auth,
            trust_domain,
            connect_timeout=seconds(config.authorization_timeout),
            max_connection_duration=lifetime,
            replicas=upstreams.more_auth,
            # No outlier detection: by the time Envoy ejects a failed auth service, it has been restarted, and the
            # remaining one may be the next to fail.
            circuit_breakers={"thresholds": [{"max_retries": MAX_AUTH_RETRIES}] if upstreams.more_auth else []},
        ),
        cluster(
            "rest",
            upstreams.rest,
            trust_domain,
            connect_timeout=seconds(REST_CONNECT_TIMEOUT_SECONDS),
            max_connection_duration=lifetime,
            per_connection_buffer_limit_bytes=BUFFER_BYTES,
            circuit_breakers={"thresholds": [limits]},
        ),
        connect_cluster(upstreams.connect, trust_domain),
    ]
