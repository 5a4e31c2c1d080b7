"""Envoy's configuration for the relay as JSON: one route per method, and one cluster.

The relay serves Spark Connect, and Arrow Flight SQL if it is enabled.

The routes must come before those that require a ``Content-Length``, because gRPC has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.core import Home
from sluice.gateway.authz import Route
from sluice.gateway.connect.messages import METHODS, SERVICE
from sluice.gateway.upstreams import UnixUpstream, cluster

FLIGHT_SERVICE = "arrow.flight.protocol.FlightService"
FLIGHT_METHODS = ("GetFlightInfo", "GetSchema", "DoGet", "DoPut", "DoAction")
"""Supported methods of Arrow Flight. The others have no route."""

CLUSTER = "connect"
OPERATION = "connect.use"

BUFFER_BYTES = 1 << 20
MAX_CALLS = 4096
MAX_CONNECTIONS = 64
"""Connections from Envoy to the relay. Each carries many calls."""


def connect_socket(home: Home) -> Path:
    """The unix socket on which the relay listens."""
    return home.sockets / "connect.sock"


def connect_operations(*, flight_sql: bool = False) -> tuple[Route, ...]:
    """The routes for the auth service. All methods of Spark Connect and Flight SQL are the same operation."""
    paths = [f"/{SERVICE}/{method}" for method in METHODS]
    if flight_sql:
        paths += [f"/{FLIGHT_SERVICE}/{method}" for method in FLIGHT_METHODS]
    return tuple(Route("POST", path, OPERATION) for path in paths)


def is_connect(route: Route) -> bool:
    """Whether ``route`` is one of :func:`connect_operations`."""
    return route.path.startswith((f"/{SERVICE}/", f"/{FLIGHT_SERVICE}/"))


def connect_route(
    route: Route,
    *,
    metadata: Mapping[str, object],
    removed: Sequence[str],
    filters: Mapping[str, object],
    conditions: Sequence[Mapping[str, object]] = (),
) -> dict[str, object]:
    """Route gRPC calls of one method to the relay, without time limits.

    Envoy's default limits (15 s in total, and an idle timeout) would end a query with an error that the client does not
    retry.

    Args:
        route: one of :func:`connect_operations`.
        metadata: metadata of the route, for the filters.
        removed: request headers to remove.
        filters: configuration of the filters on this route.
        conditions: header matchers that a call must meet.
    """
    return {
        "match": {"path": route.path, "grpc": {}, **({"headers": list(conditions)} if conditions else {})},
        "route": {
            "cluster": CLUSTER,
            "timeout": "0s",
            "idle_timeout": "0s",
            "max_stream_duration": {"max_stream_duration": "0s", "grpc_timeout_header_max": "0s"},
        },
        "metadata": dict(metadata),
        "request_headers_to_remove": list(removed),
        "typed_per_filter_config": dict(filters),
    }


def connect_cluster(upstream: UnixUpstream, trust_domain: str) -> dict[str, object]:
    """The relay's cluster, over its unix socket. Connections have no maximum duration, which could end a query."""
    return cluster(
        CLUSTER,
        upstream,
        trust_domain,
        connect_timeout="5s",
        max_connection_duration="0s",
        http2=True,
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        circuit_breakers={"thresholds": [{"max_requests": MAX_CALLS, "max_connections": MAX_CONNECTIONS}]},
    )
