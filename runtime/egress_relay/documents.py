"""The configuration of the relay's Envoy as JSON: one listener for all attempts, one Envoy cluster per attempt.

A connection selects its cluster with a capability of 256 random bits; it can select only clusters of attempts. Envoy
then sends CONNECT over mutual TLS with the certificate of the job. It uses HTTP/1.1, so that every connection has its
own handshake, in which a revoked certificate is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.core import is_ip_address
from sluice.runtime.egress_relay.preamble import AUTHORITY_TYPE, CAPABILITY_TYPE

LISTENER_NAME = "attempts"
XDS_CLUSTER = "xds"
HOST = "127.0.0.1"
BUFFER_BYTES = 1 << 20
CONNECT_TIMEOUT = "5s"
MAX_CONNECTIONS = 10_000
IDLE_TIMEOUT = "86400s"
"""The gateway ends idle connections sooner."""

_METADATA = "sluice"
_FROM_ADS: Mapping[str, object] = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
_EXTENSIONS = "type.googleapis.com/envoy.extensions."
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def bootstrap(socket: str) -> dict[str, object]:
    """Envoy's bootstrap. Everything else comes over the Unix socket of its parent process; no admin listener exists."""
    xds = {
        "name": XDS_CLUSTER,
        "type": "STATIC",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": _http_options({"http2_protocol_options": {}}),
        "load_assignment": _endpoint(XDS_CLUSTER, {"pipe": {"path": socket}}),
    }
    back_off = {"base_interval": "0.1s", "max_interval": "0.5s"}
    service = {"envoy_grpc": {"cluster_name": XDS_CLUSTER, "retry_policy": {"retry_back_off": back_off}}}
    limit = {
        "@type": f"{_EXTENSIONS}resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        "max_active_downstream_connections": MAX_CONNECTIONS,
    }
    return {
        "node": {"id": "relay", "cluster": "relay"},
        "overload_manager": {
            "resource_monitors": [
                {"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": limit}
            ]
        },
        "dynamic_resources": {
            "ads_config": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [service]},
            "cds_config": _FROM_ADS,
            "lds_config": _FROM_ADS,
        },
        "static_resources": {"clusters": [xds]},
    }


def listener(port: int) -> dict[str, object]:
    """The listener for connections of all attempts, on the loopback interface."""
    rules = [
        {"tlv_type": kind, "on_tlv_present": {"metadata_namespace": _METADATA, "key": key}}
        for kind, key in ((CAPABILITY_TYPE, "capability"), (AUTHORITY_TYPE, "authority"))
    ]
    return {
        "name": LISTENER_NAME,
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        # No other process may listen on the same port.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "listener_filters": [
            _extension(
                "proxy", "filters.listener.proxy_protocol.v3.ProxyProtocol", rules=rules, disallowed_versions=["V1"]
            )
        ],
        "listener_filters_timeout": "5s",
        "filter_chains": [{"filters": [_choice(), _tunnel()]}],
    }


def cluster(name: str, address: tuple[str, int], trust_domain: str) -> dict[str, object]:
    """The cluster that connects one attempt to the gateway; ``name`` also names its secrets."""
    host, port = address
    return {
        "name": cluster_name(name),
        "type": "STATIC" if is_ip_address(host) else "STRICT_DNS",
        "dns_lookup_family": "ALL",
        "connect_timeout": CONNECT_TIMEOUT,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "typed_extension_protocol_options": _http_options({"http_protocol_options": {}}),
        "circuit_breakers": {
            "thresholds": [
                dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), MAX_CONNECTIONS),
            ]
        },
        "load_assignment": _endpoint(cluster_name(name), {"socket_address": {"address": host, "port_value": port}}),
        "transport_socket": _mutual_tls(name, trust_domain),
    }


def cluster_name(name: str) -> str:
    """The name with a prefix, so that a connection cannot select a cluster that is not an attempt's."""
    return f"attempt-{name}"


def certificate_name(name: str) -> str:
    """The name of the secret with the certificate and key of an attempt."""
    return f"certificate-{name}"


def trust_name(name: str) -> str:
    """The name of the secret with the trust anchors and CRLs of an attempt."""
    return f"trust-{name}"


def _choice() -> dict[str, object]:
    name = {"inline_string": cluster_name(f"%DYNAMIC_METADATA({_METADATA}:capability)%")}
    state = {
        "object_key": "envoy.tcp_proxy.cluster",
        "format_string": {"text_format_source": name, "omit_empty_values": True},
    }
    return _extension("choice", "filters.network.set_filter_state.v3.Config", on_new_connection=[state])


def _tunnel() -> dict[str, object]:
    return _extension(
        "envoy.filters.network.tcp_proxy",
        "filters.network.tcp_proxy.v3.TcpProxy",
        stat_prefix="attempts",
        cluster="no-such-attempt",
        idle_timeout=IDLE_TIMEOUT,
        max_connect_attempts=1,
        tunneling_config={"hostname": f"%DYNAMIC_METADATA({_METADATA}:authority)%"},
    )


def _mutual_tls(name: str, trust_domain: str) -> dict[str, object]:
    # Without the trailing slash, a role whose name starts with "gateway" would match too.
    gateway = {"san_type": "URI", "matcher": {"prefix": f"spiffe://{trust_domain}/gateway/"}}
    return _extension(
        "envoy.transport_sockets.tls",
        "transport_sockets.tls.v3.UpstreamTlsContext",
        max_session_keys=0,
        allow_renegotiation=False,
        common_tls_context={
            "alpn_protocols": ["http/1.1"],
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3",
                "tls_maximum_protocol_version": "TLSv1_3",
                "ecdh_curves": ["X25519MLKEM768", "X25519", "P-256"],
            },
            "tls_certificate_sds_secret_configs": [{"name": certificate_name(name), "sds_config": _FROM_ADS}],
            "combined_validation_context": {
                "default_validation_context": {"match_typed_subject_alt_names": [gateway]},
                "validation_context_sds_secret_config": {"name": trust_name(name), "sds_config": _FROM_ADS},
            },
        },
    )


def _extension(name: str, kind: str, **fields: object) -> dict[str, object]:
    return {"name": name, "typed_config": {"@type": f"{_EXTENSIONS}{kind}", **fields}}


def _http_options(explicit: Mapping[str, object]) -> dict[str, object]:
    options = {"@type": f"type.googleapis.com/{_HTTP_OPTIONS}", "explicit_http_config": explicit}
    return {_HTTP_OPTIONS: options}


def _endpoint(name: str, address: Mapping[str, object]) -> dict[str, object]:
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}
