"""Settings of the gateway (section ``[gateway]`` of ``sluice.toml``)."""

from __future__ import annotations

import msgspec

AUTH_NAME = "auth-1"
"""Process name in the auth service's certificate."""
ENVOY_NAME = "envoy"
"""Process name in the certificate that Envoy shows inside."""
EDGE_NAME = "edge"
"""Name of the gateway's public certificate."""


CONNECT_NAME = "connect"
"""Process name in the certificate of the relay for Spark Connect."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8443
    """Port of Envoy's HTTPS listener; 0 means any free port."""
    server_names: tuple[str, ...] = ("localhost",)
    """DNS names in the edge certificate, besides the listener's address; requests for other hosts are refused."""
    request_timeout: float = 60.0
    """How long REST may take to answer a request that has arrived completely."""
    upload_timeout: float = 600.0
    """How long a request may take to arrive, body included."""
    stream_idle_timeout: float = 60.0
    """How long nothing may move in a request or its answer."""
    max_request_bytes: int = 256 << 20
    max_connections: int = 1000
    auth_host: str = ""
    """Where Envoy reaches the auth service over mutual TLS; empty: on its unix socket, both on one machine."""
    auth_port: int = 8082
    max_upstream_seconds: float = 3.0
    """How long a connection inwards is kept: a new revocation list counts in handshakes, not on open connections."""
    authorization_timeout: float = 0.5
    """How long Envoy waits for the auth service before it refuses with 503."""
    policy_file: str = ""
    """Who may do what; empty: ``gateway/policy.toml`` in the home when it is there, else the policy of Sluice."""
