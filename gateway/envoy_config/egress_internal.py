"""Envoy's internal listeners, which inspect the first bytes of a tunnel.

Filter state carries facts about the CONNECT request from the auth service's response; only Envoy writes it. The kinds
are ``tls``: only TLS with the requested name; ``auto``: also HTTP for the requested host, and other protocols; ``tcp``:
any protocol, for servers that send the first bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.gateway.envoy_config.egress_log import host_log, tunnel_log
from sluice.gateway.envoy_config.json_values import extension, seconds

INTERNAL_LISTENERS = ("tls", "auto", "tcp")
"""The kinds that the auth service can select. A listener's name is ``egress-`` and its kind."""
TUNNEL_METADATA = ("authority", "job", "process", "owner", "rule", "host", "sni")
"""Facts about a tunnel in the auth service's response, besides the address."""
FIRST_BYTES_SECONDS = 30.0
"""How long a job may wait before it sends its first bytes; a server that sends first needs ``tcp``."""
UNENFORCED_FIRST_BYTES_SECONDS = 1.0
"""The same when mismatches are not refused. After this time the server may send first."""

_METADATA = "envoy.filters.http.ext_authz"
_ADDRESS = "envoy.network.transport_socket.original_dst_address"
_TCP_PROXY = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
_HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_RAW = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
_INTERNAL = "envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport"


def filter_states() -> list[dict[str, object]]:
    """The filter state of a tunnel, from the auth service's response. Without an address Envoy cannot connect."""
    return [
        _state(_ADDRESS, f"%DYNAMIC_METADATA({_METADATA}:address)%"),
        *(_state(_key(fact), f"%DYNAMIC_METADATA({_METADATA}:{fact})%", "envoy.string") for fact in TUNNEL_METADATA),
        _state(_key("request_id"), "%REQ(X-REQUEST-ID)%", "envoy.string"),
    ]


def internal_cluster(kind: str) -> dict[str, object]:
    """The cluster that leads from the egress listener to the internal listener ``kind``."""
    name = f"egress-{kind}"
    internal = {"envoy_internal_address": {"server_listener_name": name}}
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": internal}}]}],
        },
        "transport_socket": extension(
            "envoy.transport_sockets.internal_upstream",
            _INTERNAL,
            transport_socket=extension("envoy.transport_sockets.raw_buffer", _RAW),
        ),
    }


def internal_listener(kind: str, upstream: str, *, idle: float, longest: float, enforced: bool) -> dict[str, object]:
    """The internal listener ``kind``. Without ``enforced``, mismatches are only recorded. Times in seconds."""
    forward = extension(
        "envoy.filters.network.tcp_proxy",
        _TCP_PROXY,
        stat_prefix=f"egress-{kind}",
        cluster=upstream,
        idle_timeout=seconds(idle),
        max_downstream_connection_duration=seconds(longest),
    )
    chains: list[dict[str, object]] = []
    if kind != "tcp":
        match = {"transport_protocol": "tls"}
        chains.append({"name": "tls", "filter_chain_match": match, "filters": [_same_name(enforced=enforced), forward]})
    if kind == "auto":
        http = {"transport_protocol": "raw_buffer", "application_protocols": ["http/1.0", "http/1.1", "h2c"]}
        manager = _plain_http(upstream, idle=idle, longest=longest, enforced=enforced)
        chains.append({"name": "http", "filter_chain_match": http, "filters": [manager]})
    if kind == "tcp":
        chains.append({"name": "bytes", "filters": [forward]})
    elif kind == "auto" or not enforced:
        # Has the same transport protocol as the HTTP chain: Envoy matches it before the application protocols.
        raw = {"transport_protocol": "raw_buffer"}
        chains.append({"name": "bytes", "filter_chain_match": raw, "filters": [forward]})
    inspectors = [
        extension("tls", "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"),
        extension("http", "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector"),
    ]
    return {
        "name": f"egress-{kind}",
        "internal_listener": {},
        "ignore_global_conn_limit": True,
        "listener_filters": [] if kind == "tcp" else inspectors,
        "listener_filters_timeout": seconds(FIRST_BYTES_SECONDS if enforced else UNENFORCED_FIRST_BYTES_SECONDS),
        "continue_on_listener_filters_timeout": not enforced,
        "access_log": [tunnel_log(_logged_facts())],
        "filter_chains": chains,
    }


def _same_name(*, enforced: bool) -> dict[str, object]:
    """Requires that the SNI equals the name of the CONNECT request; for an address there must be no SNI."""
    shown = _call("bytes", _select("connection", "requested_server_name"))
    return extension(
        "envoy.filters.network.rbac",
        "envoy.extensions.filters.network.rbac.v3.RBAC",
        stat_prefix="egress-sni",
        **{"rules" if enforced else "shadow_rules": _rules("sni", _call("_==_", shown, _fact("sni")))},
    )


def _plain_http(upstream: str, *, idle: float, longest: float, enforced: bool) -> dict[str, object]:
    """Plain HTTP; each request must be for the host of the CONNECT request."""
    asked = _call("bytes", _select("request", "host"))
    # The port is optional and never stripped: the Host header may be part of a signed request, as with S3.
    same = (_call("_==_", asked, _fact(fact)) for fact in ("host", "authority"))
    rules = _rules("host", _call("_||_", *same))
    return extension(
        "envoy.filters.network.http_connection_manager",
        _HCM,
        stat_prefix="egress-http",
        codec_type="AUTO",
        http_protocol_options={"accept_http_10": True},
        generate_request_id=False,
        server_header_transformation="PASS_THROUGH",
        proxy_100_continue=True,
        upgrade_configs=[{"upgrade_type": "websocket"}],
        stream_idle_timeout=seconds(idle),
        common_http_protocol_options={"idle_timeout": seconds(idle), "max_connection_duration": seconds(longest)},
        access_log=[host_log(_logged_facts())],
        http_filters=[
            extension(
                "envoy.filters.http.rbac",
                "envoy.extensions.filters.http.rbac.v3.RBAC",
                **{"rules" if enforced else "shadow_rules": rules},
            ),
            extension(
                "envoy.filters.http.router",
                "envoy.extensions.filters.http.router.v3.Router",
                suppress_envoy_headers=True,
            ),
        ],
        route_config={
            "name": "egress-http",
            "virtual_hosts": [
                {
                    "name": "any",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": upstream, "timeout": "0s"}}],
                }
            ],
        },
    )


def _state(key: str, text: str, factory: str = "") -> dict[str, object]:
    state: dict[str, object] = {
        "object_key": key,
        "format_string": {"text_format_source": {"inline_string": text}, "omit_empty_values": True},
        "shared_with_upstream": "ONCE",
    }
    return {**state, "factory_key": factory} if factory else state


def _key(fact: str) -> str:
    return f"sluice.egress.{fact}"


def _logged_facts() -> Mapping[str, str]:
    states = {fact: f"%FILTER_STATE({_key(fact)}:PLAIN)%" for fact in (*TUNNEL_METADATA, "request_id")}
    return {**states, "address": f"%FILTER_STATE({_ADDRESS}:PLAIN)%"}


def _rules(name: str, condition: dict[str, object]) -> dict[str, object]:
    policy = {"permissions": [{"any": True}], "principals": [{"any": True}], "condition": condition}
    return {"action": "ALLOW", "policies": {name: policy}}


def _fact(fact: str) -> dict[str, object]:
    return _call("_[_]", {"ident_expr": {"name": "filter_state"}}, {"const_expr": {"string_value": _key(fact)}})


def _select(of: str, field: str) -> dict[str, object]:
    return {"select_expr": {"operand": {"ident_expr": {"name": of}}, "field": field}}


def _call(function: str, *arguments: dict[str, object]) -> dict[str, object]:
    return {"call_expr": {"function": function, "args": list(arguments)}}
