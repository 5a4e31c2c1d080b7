"""What Envoy needs for Spark Connect: one route and one cluster. Plain values, in the form of Envoy's JSON.

The route must come before those that want a ``Content-Length``: gRPC has none.
"""

from __future__ import annotations

from pathlib import Path

from gateway.connect.messages import METHODS, SERVICE
from gateway.routes import Route
from gateway.upstreams import raw_socket
from pki.home import Home

CLUSTER = "connect"
OPERATION = "connect.use"

_HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def connect_socket(home: Home) -> Path:
    """Where the relay listens."""
    return home.sockets / "connect.sock"


def connect_operations() -> tuple[Route, ...]:
    """The routes for the auth service: every method of Spark Connect is one operation."""
    return tuple(Route("POST", f"/{SERVICE}/{method}", OPERATION) for method in METHODS)


def connect_routes() -> list[dict[str, object]]:
    """gRPC calls of Spark Connect go to the relay, for as long as they take.

    Envoy's own limits would end a query with an error that the client does not retry: 15 s of time, and any pause.
    """
    return [
        {
            "match": {"prefix": f"/{SERVICE}/", "grpc": {}},
            "route": {
                "cluster": CLUSTER,
                "timeout": "0s",
                "idle_timeout": "0s",
                "max_stream_duration": {"max_stream_duration": "0s", "grpc_timeout_header_max": "0s"},
            },
        }
    ]


def connect_clusters(socket: Path) -> list[dict[str, object]]:
    """The relay, over its unix socket."""
    return [
        {
            "name": CLUSTER,
            "type": "STATIC",
            "connect_timeout": "5s",
            "per_connection_buffer_limit_bytes": 1 << 20,
            "transport_socket": raw_socket(),
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": _HTTP,
                    "explicit_http_config": {
                        "http2_protocol_options": {
                            "max_concurrent_streams": 100,
                            "initial_stream_window_size": 1 << 20,
                            "initial_connection_window_size": 4 << 20,
                        }
                    },
                }
            },
            "circuit_breakers": {"thresholds": [{"max_requests": 4096, "max_connections": 64}]},
            "load_assignment": {
                "cluster_name": CLUSTER,
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": str(socket)}}}}]}],
            },
        }
    ]
