"""The egress gateway of jobs: a listener for CONNECT requests, and the path of an allowed connection.

1. The listener requires the client certificate of a job's process. The auth service decides about each CONNECT and
   returns the address to connect to, which it has resolved and checked. Envoy does not resolve the name again, which
   prevents DNS rebinding.
2. The tunnel's data passes an internal listener of Envoy, which inspects the first bytes: TLS must have the requested
   name as its SNI, and plain HTTP requests must be for the requested host.
3. The internal listener connects to exactly the checked address.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.core import EgressConfig, EgressSetting
from sluice.gateway.envoy_config.egress_internal import (
    INTERNAL_LISTENERS,
    filter_states,
    internal_cluster,
    internal_listener,
)
from sluice.gateway.envoy_config.egress_log import refused_log
from sluice.gateway.envoy_config.json_values import exact_header, extension, seconds, typed
from sluice.gateway.upstreams import XDS_CLUSTER, common_tls_context

EGRESS = "egress"
"""Name of the listener."""
INTERNAL_LISTENER_HEADER = "x-sluice-egress"
"""Header of the auth service's response that selects the internal listener; removed from client requests."""
UPSTREAM = "egress-upstream"
"""The cluster for all destinations."""
NO_ENDPOINT_CLUSTER = "egress-nowhere"
"""A cluster without endpoints."""

AUTHORIZATION_SECONDS = 10.0
"""Timeout of the auth service, which queries REST and the DNS."""
HANDSHAKE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
DELAYED_CLOSE_SECONDS = 0.2
"""Time for a refused client to read the reason."""
BUFFER_BYTES = 1 << 20

_HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_DOWNSTREAM_TLS = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
_EXT_AUTHZ = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ROUTER = "envoy.extensions.filters.http.router.v3.Router"
_HEADER_MUTATION = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"


NO_EGRESS = EgressConfig(mode=EgressSetting.OFF)


def is_on(config: EgressConfig) -> bool:
    """Whether the egress gateway is on."""
    return config.mode in {EgressSetting.ENFORCE, EgressSetting.AUDIT}


def egress_listeners(config: EgressConfig, trust_domain: str, *, shared: bool = False) -> dict[str, dict[str, object]]:
    """The egress listener and the three internal listeners, by name; empty when the egress gateway is off.

    ``shared``: several Envoys of one machine listen on the same port.
    """
    if not is_on(config):
        return {}
    enforced = config.mode is EgressSetting.ENFORCE
    inside = [
        internal_listener(kind, UPSTREAM, idle=config.idle_timeout, longest=config.max_seconds, enforced=enforced)
        for kind in INTERNAL_LISTENERS
    ]
    return {str(each["name"]): each for each in (_listener(config, trust_domain, shared=shared), *inside)}


def egress_clusters(config: EgressConfig) -> list[dict[str, object]]:
    """The clusters of the internal listeners, and of the destinations."""
    if not is_on(config):
        return []
    most = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), config.max_connections)
    limits = {"thresholds": [most]}
    upstream: dict[str, object] = {
        "name": UPSTREAM,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": seconds(CONNECT_SECONDS),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "circuit_breakers": limits,
        "upstream_connection_options": {"tcp_keepalive": {}},
        # Connections are never shared between jobs: a job may have authenticated itself on its connection.
        "connection_pool_per_downstream_connection": True,
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: typed(
                _HTTP_OPTIONS,
                use_downstream_protocol_config={"http_protocol_options": {}, "http2_protocol_options": {}},
            )
        },
    }
    no_endpoints: dict[str, object] = {
        "name": NO_ENDPOINT_CLUSTER,
        "type": "STATIC",
        "load_assignment": {"cluster_name": NO_ENDPOINT_CLUSTER},
    }
    return [
        *({**internal_cluster(kind), "circuit_breakers": limits} for kind in INTERNAL_LISTENERS),
        upstream,
        no_endpoints,
    ]


def _listener(config: EgressConfig, trust_domain: str, *, shared: bool) -> dict[str, object]:
    return {
        "name": EGRESS,
        "address": {"socket_address": {"address": config.host, "port_value": config.port}},
        "enable_reuse_port": shared,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        # Connections of jobs have their own limit and do not count against the limit of the gateway.
        "ignore_global_conn_limit": True,
        "filter_chains": [
            {
                "transport_socket_connect_timeout": seconds(HANDSHAKE_SECONDS),
                "transport_socket": _transport_socket(trust_domain),
                "filters": [
                    extension(
                        "limit",
                        "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit",
                        stat_prefix=EGRESS,
                        max_connections=config.max_connections,
                    ),
                    _connection_manager(config),
                ],
            }
        ],
    }


def _transport_socket(trust_domain: str) -> dict[str, object]:
    context = typed(
        _DOWNSTREAM_TLS,
        require_client_certificate=True,
        disable_stateless_session_resumption=True,
        disable_stateful_session_resumption=True,
        common_tls_context=common_tls_context(trust_domain, "job"),
    )
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _connection_manager(config: EgressConfig) -> dict[str, object]:
    return extension(
        "envoy.filters.network.http_connection_manager",
        _HCM,
        stat_prefix=EGRESS,
        server_name="sluice",
        codec_type="HTTP1",
        http_protocol_options={"accept_http_10": True},  # Python's http.client sends CONNECT with HTTP/1.0
        use_remote_address=True,
        skip_xff_append=True,
        early_header_mutation_extensions=[
            extension("strip", _HEADER_MUTATION, mutations=[{"remove": INTERNAL_LISTENER_HEADER}]),
        ],
        max_request_headers_kb=16,
        common_http_protocol_options={
            "idle_timeout": seconds(HANDSHAKE_SECONDS),
            "max_stream_duration": seconds(config.max_seconds),
            "max_headers_count": 32,
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        request_headers_timeout=seconds(HANDSHAKE_SECONDS),
        delayed_close_timeout=seconds(DELAYED_CLOSE_SECONDS),
        stream_idle_timeout=seconds(config.idle_timeout),
        upgrade_configs=[{"upgrade_type": "CONNECT"}],
        access_log=[refused_log()],
        http_filters=[
            _authorization(),
            extension(
                "pin",
                "envoy.extensions.filters.http.set_filter_state.v3.Config",
                on_request_headers=filter_states(),
            ),
            extension("envoy.filters.http.router", _ROUTER, suppress_envoy_headers=True),
        ],
        # Before the auth service has answered, the last route applies, whose cluster has no endpoints. Without a
        # route, Envoy would not call the auth service at all.
        route_config={
            "name": EGRESS,
            "virtual_hosts": [
                {
                    "name": EGRESS,
                    "domains": ["*"],
                    "routes": [*(_route(kind) for kind in INTERNAL_LISTENERS), _nowhere()],
                }
            ],
        },
    )


def _authorization() -> Mapping[str, object]:
    service = {
        "envoy_grpc": {"cluster_name": XDS_CLUSTER},
        "timeout": seconds(AUTHORIZATION_SECONDS),
    }
    return extension(
        "envoy.filters.http.ext_authz",
        _EXT_AUTHZ,
        transport_api_version="V3",
        grpc_service=service,
        include_peer_certificate=True,
        failure_mode_allow=False,
        status_on_error={"code": "ServiceUnavailable"},
        validate_mutations=True,
        clear_route_cache=True,
    )


def _route(kind: str) -> dict[str, object]:
    return {
        "match": {"connect_matcher": {}, "headers": [exact_header(INTERNAL_LISTENER_HEADER, kind)]},
        "route": {
            "cluster": f"{EGRESS}-{kind}",
            "timeout": "0s",
            "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
        },
    }


def _nowhere() -> dict[str, object]:
    return {"match": {"connect_matcher": {}}, "route": {"cluster": NO_ENDPOINT_CLUSTER}}
