"""Envoy's answers to an ACME server that validates the gateway's names (RFC 8555 section 8, RFC 8737).

tls-alpn-01: filter chains for clients that offer ``acme-tls/1``. They present the challenge certificate, support only
this protocol, and close the connection after the handshake, so no client reaches HTTP through them.

http-01: the only listener without TLS. Its routes contain the responses to the current challenges, and it has no
cluster, so it cannot forward any request.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.json_values import extension, seconds, typed
from sluice.gateway.upstreams import ACME_ROUTES, ACME_SECRET, acme_secret, local_source, secret_source
from sluice.pki.x509 import ACME_TLS_PROTOCOL

ACME_HTTP = "acme-http-01"
"""Name of the http-01 listener."""
NO_ENDPOINT_CLUSTER = "acme-nowhere"
"""A cluster without endpoints, the destination of validation connections."""

HTTP_SECONDS = 5.0
"""Timeout for the headers, for the request, and for an idle connection."""
MAX_HTTP_CONNECTIONS = 64
"""A validation uses one connection for each vantage point of the ACME server."""
HTTP_BUFFER_BYTES = 16 << 10

_HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_TCP_PROXY = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
_LIMIT = "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit"
_ROUTER = "envoy.extensions.filters.http.router.v3.Router"


def with_tls_challenges(listener: dict[str, Any], config: GatewayConfig) -> dict[str, Any]:
    """The edge listener (TCP) with one validation filter chain per name, and one for all other ``acme-tls/1`` clients.

    The chains exist all the time and only their certificates change, so a client that offers the protocol never
    reaches HTTP.
    """
    if config.acme is None or config.acme.challenge != "tls-alpn-01":
        return listener
    first, names = listener["filter_chains"][0], sorted({name.lower() for name in config.server_names})
    for_names = [_tls_chain(first, acme_secret(name), {"server_names": [name]}) for name in names]
    for_others = _tls_chain(first, ACME_SECRET, {})
    return {**listener, "filter_chains": [*listener["filter_chains"], *for_names, for_others]}


def _tls_chain(first: dict[str, Any], secret: str, match: Mapping[str, object]) -> dict[str, Any]:
    """A copy of ``first`` with another certificate, without HTTP."""
    chain = copy.deepcopy(first)
    chain["name"] = secret
    chain["filter_chain_match"] = {**match, "application_protocols": [ACME_TLS_PROTOCOL]}
    tls = chain["transport_socket"]["typed_config"]["common_tls_context"]
    tls["alpn_protocols"] = [ACME_TLS_PROTOCOL]
    tls["tls_certificate_sds_secret_configs"] = [secret_source(secret)]
    # No client has a reason to present a certificate here.
    del tls["validation_context_sds_secret_config"]
    chain["filters"] = [
        # After the handshake, the proxy finds no endpoint and closes the connection (RFC 8737 section 3).
        extension(
            "envoy.filters.network.tcp_proxy",
            _TCP_PROXY,
            stat_prefix="acme",
            cluster=NO_ENDPOINT_CLUSTER,
            upstream_connect_mode="ON_DOWNSTREAM_TLS_HANDSHAKE",
            max_early_data_bytes=0,
        )
    ]
    return chain


def acme_clusters(config: GatewayConfig) -> list[dict[str, object]]:
    """The cluster without endpoints, if the challenge is tls-alpn-01."""
    if config.acme is None or config.acme.challenge != "tls-alpn-01":
        return []
    return [{"name": NO_ENDPOINT_CLUSTER, "type": "STATIC", "load_assignment": {"cluster_name": NO_ENDPOINT_CLUSTER}}]


def http_challenge_listeners(config: GatewayConfig) -> dict[str, dict[str, Any]]:
    """The http-01 listener by name; empty unless http-01 is configured."""
    if config.acme is None or config.acme.challenge != "http-01":
        return {}
    manager = typed(
        _HCM,
        stat_prefix=ACME_HTTP,
        codec_type="HTTP1",
        server_name="sluice",
        use_remote_address=True,
        skip_xff_append=True,
        max_request_headers_kb=8,
        request_headers_timeout=seconds(HTTP_SECONDS),
        request_timeout=seconds(HTTP_SECONDS),
        stream_idle_timeout=seconds(HTTP_SECONDS),
        delayed_close_timeout=seconds(1),
        common_http_protocol_options={
            "idle_timeout": seconds(HTTP_SECONDS),
            "max_connection_duration": seconds(HTTP_SECONDS * 4),
            "max_headers_count": 64,
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        # No path normalization and no merging of slashes: a challenge path has one spelling, all others get 404.
        rds={"route_config_name": ACME_ROUTES, "config_source": local_source()},
        http_filters=[extension("envoy.filters.http.router", _ROUTER)],
    )
    limit = extension("limit", _LIMIT, stat_prefix=ACME_HTTP, max_connections=MAX_HTTP_CONNECTIONS)
    listener: dict[str, Any] = {
        "name": ACME_HTTP,
        "address": {
            "socket_address": {"address": config.host, "port_value": config.acme.http_port},
        },
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": HTTP_BUFFER_BYTES,
        # Its connections do not count against the limit of the gateway.
        "ignore_global_conn_limit": True,
        "filter_chains": [
            {"filters": [limit, {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {ACME_HTTP: listener}


def http_challenge_routes(answers: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """The routes of the http-01 listener, from name -> path -> body. All other requests get 404.

    Responses are plain text. No route forwards or redirects.
    """
    hosts = [
        {
            "name": name,
            "domains": [name, f"{name}:*"],
            "routes": [_answer(path, body) for path, body in sorted(paths.items())] + [_NOT_FOUND],
        }
        for name, paths in sorted(answers.items())
    ]
    hosts.append({"name": "all", "domains": ["*"], "routes": [_NOT_FOUND]})
    return {"name": ACME_ROUTES, "virtual_hosts": hosts, "response_headers_to_add": _HEADERS}


_HEADERS = [
    {"header": {"key": "content-type", "value": "text/plain"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"},
    {"header": {"key": "cache-control", "value": "no-store"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"},
    {"header": {"key": "x-content-type-options", "value": "nosniff"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"},
]
_NOT_FOUND: dict[str, object] = {
    "match": {"prefix": "/"},
    "direct_response": {"status": 404, "body": {"inline_string": "This port answers ACME challenges only.\n"}},
}


def _answer(path: str, body: str) -> dict[str, object]:
    return {
        "match": {
            "path": path,
            "case_sensitive": True,
            "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
        },
        "direct_response": {"status": 200, "body": {"inline_string": body}},
    }
