"""Envoy's configuration is complete, and no value can change its structure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.core.home import Home
from sluice.gateway.authz.routes import Route
from sluice.gateway.config import GatewayConfig
from sluice.gateway.connect.envoy import connect_operations
from sluice.gateway.credentials.access_tokens import role_access_token_prefix
from sluice.gateway.envoy_config.clusters import edge_clusters
from sluice.gateway.envoy_config.headers import REMOVED_HEADERS, REMOVED_PREFIXES
from sluice.gateway.envoy_config.limits import rate_limit
from sluice.gateway.envoy_config.listeners import SOURCE as LISTENER_SOURCE, edge_listener
from sluice.gateway.envoy_config.replies import LOCAL_DETAILS, local_replies
from sluice.gateway.envoy_config.routes import DISCOVERY_PATHS, Grants, domains, route_configuration
from sluice.gateway.envoy_config.templates import fill, load_source
from sluice.gateway.errors import BootstrapError
from sluice.gateway.proxy.bootstrap import (
    SOURCE,
    EnvoyPaths,
    render,
    upstreams_of,
)
from sluice.gateway.service.checks import OPERATION_HEADER, REQUEST_ID_HEADER
from sluice.pki.assertions.tokens import HEADER

PATHS = EnvoyPaths.of(Home(Path("/home/of/cluster")))


def rendered(
    config: GatewayConfig | None = None, trust_domain: str = "test", rest: tuple[str, int] | None = None
) -> Any:
    config = config or GatewayConfig()
    return render(load_source(SOURCE), config, trust_domain, PATHS, upstreams_of(config, PATHS, rest))


def listener(config: GatewayConfig | None = None) -> Any:
    return edge_listener(load_source(LISTENER_SOURCE), config or GatewayConfig())


def clusters(config: GatewayConfig | None = None, rest: tuple[str, int] | None = None) -> Any:
    config = config or GatewayConfig()
    return edge_clusters(config, "td", upstreams_of(config, PATHS, rest))


def nodes(node: object) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


def found(document: object, key: str) -> list[Any]:
    return [node[key] for node in nodes(document) if key in node]


def test_no_placeholder_is_left() -> None:
    for document in (rendered(), listener()):
        assert found(document, "$value") == []
        json.dumps(document)


def test_configured_values_appear_in_the_rendered_documents() -> None:
    config = GatewayConfig(host="127.0.0.9", port=9443, authorization_timeout=0.25, max_connections=7)
    document = rendered(config, "cluster.test")
    assert document["node"]["cluster"] == "cluster.test"
    edge = listener(config)
    assert edge["address"] == {"socket_address": {"address": "127.0.0.9", "port_value": 9443}}
    assert {uri["timeout"] for uri in found(edge, "server_uri")} == {"0.250s"}
    assert found(document, "max_active_downstream_connections") == [7]


def test_a_hostile_value_cannot_change_the_structure_of_the_configuration() -> None:
    hostile = '"}],"admin":{"address":{"socket_address":{"address":"0.0.0.0","port_value":1}}} # \n - x: y'
    document = rendered(trust_domain=hostile)
    assert document["node"]["cluster"] == hostile
    assert document["admin"] == rendered()["admin"]


def test_bootstrap_listens_on_nothing_but_a_private_socket() -> None:
    document = rendered()
    assert "listeners" not in document["static_resources"]
    assert list(document["admin"]["address"]) == ["pipe"]
    assert document["admin"]["address"]["pipe"]["mode"] == 0o600
    for cluster in document["static_resources"]["clusters"]:
        assert found(cluster, "socket_address") == []


def test_remote_xds_uses_mutual_tls_and_keys_come_from_the_local_sds_socket() -> None:
    xds, sds = rendered(GatewayConfig(auth_host="auth.internal"), "td")["static_resources"]["clusters"]
    assert (xds["name"], sds["name"]) == ("xds", "sds")
    prefix = {"san_type": "URI", "matcher": {"prefix": "spiffe://td/auth/"}}
    assert found(xds, "match_typed_subject_alt_names") == [[prefix]]
    assert found(xds, "alpn_protocols") == [["h2"]]
    assert found(sds, "pipe") == [{"path": str(PATHS.sds_socket)}]


def test_upstreams_on_other_hosts_use_mutual_tls_only() -> None:
    auth, rest, relay = clusters(GatewayConfig(auth_host="auth.internal"), ("192.0.2.7", 8081))
    assert found(relay, "pipe") == [{"path": str(PATHS.connect_socket)}]
    assert (auth["type"], rest["type"]) == ("STRICT_DNS", "STATIC")
    for cluster, role in ((auth, "auth"), (rest, "jobmanager")):
        tls = cluster["transport_socket"]["typed_config"]
        assert tls["@type"].endswith(".tls.v3.UpstreamTlsContext")
        assert tls["max_session_keys"] == 0
        assert found(tls, "tls_params")[0]["tls_minimum_protocol_version"] == "TLSv1_3"
        assert found(tls, "match_typed_subject_alt_names") == [
            [{"san_type": "URI", "matcher": {"prefix": f"spiffe://td/{role}/"}}]
        ]
        assert [each["name"] for each in found(tls, "tls_certificate_sds_secret_configs")[0]] == ["internal"]
        assert found(tls, "validation_context_sds_secret_config")[0]["name"] == "internal-trust"
        assert found(cluster, "pipe") == []


def test_upstreams_on_the_same_machine_are_unix_sockets() -> None:
    for cluster in clusters():
        assert cluster["transport_socket"]["name"] == "envoy.transport_sockets.raw_buffer"
        assert found(cluster, "pipe")[0]["path"].startswith("/")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104  refused
def test_an_upstream_at_a_wildcard_address_is_refused(host: str) -> None:
    with pytest.raises(BootstrapError, match="cannot connect to"):
        rendered(rest=(host, 8081))


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_an_upstream_with_an_invalid_port_is_refused(port: int) -> None:
    with pytest.raises(BootstrapError, match="cannot reach"):
        rendered(GatewayConfig(auth_host="auth", auth_port=port))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("failure_mode_allow", [False, False]),
        ("tls_minimum_protocol_version", ["TLSv1_3"]),
        ("normalize_path", [True]),
        ("merge_slashes", [True]),
        ("path_with_escaped_slashes_action", ["REJECT_REQUEST"]),
        ("headers_with_underscores_action", ["REJECT_REQUEST"]),
        ("enable_reuse_port", [False]),
        ("disable_stateless_session_resumption", [True]),
        ("upgrade_configs", []),
        ("preserve_external_request_id", []),
        ("with_request_body", []),
    ],
)
def test_security_relevant_listener_settings_have_their_required_values(key: str, expected: list[object]) -> None:
    assert found(listener(), key) == expected


def test_http_filters_are_in_the_required_order() -> None:
    filters = [entry["name"] for entry in found(listener(), "http_filters")[0]]
    assert filters == [
        "pass",
        "revocations",
        "rate-limit",
        "cookie",
        "ask",
        "ask-always",
        "authorization",
        "envoy.filters.http.router",
    ]


def test_policy_without_a_route_allows_nothing() -> None:
    assert found(listener(), "rules")[-1] == {"action": "ALLOW", "policies": {}}


ROUTES = (
    Route("GET", "/v1/jobs", "jobs.list"),
    Route("POST", "/v1/jobs", "jobs.submit"),
    Route("PATCH", "/v1/jobs/{id}", "jobs.cancel"),
)
GRANTS = Grants({"viewer": {"jobs.list"}, "admin": {"jobs.list", "jobs.submit", "jobs.cancel"}}, "0123456789abcd")


def edge_routes() -> list[dict[str, Any]]:
    document: Any = route_configuration(GatewayConfig(), ROUTES, GRANTS)
    routes: list[dict[str, Any]] = document["virtual_hosts"][0]["routes"]
    return routes


def test_only_login_and_discovery_routes_are_open_without_authentication() -> None:
    """No other route switches authentication off."""
    unasked = [route for route in edge_routes() if found(route, "disabled")]
    demanding = [route for route in unasked if found(route, "requirement_name") == ["role-pass"]]
    matches = [route["match"] for route in unasked if route not in demanding]
    assert {match.get("path_separated_prefix") or match["path"] for match in matches} == {"/auth", *DISCOVERY_PATHS}
    for route in demanding:
        assert route["match"]["headers"][0]["name"] == "authorization"
        assert {each["name"] for each in found(route["typed_per_filter_config"]["authorization"], "header")} == {
            "x-sluice-role"
        }


def test_every_route_to_rest_authorizes_its_operation_and_removes_credentials() -> None:
    for route in edge_routes():
        if route.get("route", {}).get("cluster") == "rest":
            operation = route["metadata"]["filter_metadata"]["sluice"]["operation"]
            (policies,) = found(route["typed_per_filter_config"]["authorization"], "policies")
            assert list(policies) == [operation]
            assert "cookie" in route["request_headers_to_remove"]
            assert "authorization" in route["request_headers_to_remove"]


def test_an_operation_that_no_role_has_is_denied_for_every_access_token() -> None:
    document: Any = route_configuration(GatewayConfig(), ROUTES[:1], Grants({"viewer": set()}))
    (by_access_token,) = [route for route in document["virtual_hosts"][0]["routes"] if found(route, "requirement_name")]
    assert found(by_access_token, "principals") == [[{"not_id": {"any": True}}]]


def roles_of(route: dict[str, Any]) -> list[str]:
    """Return the roles that Envoy lets through without asking the auth service."""
    authorization = route["typed_per_filter_config"]["authorization"]
    from_metadata = [
        matcher["value"]["string_match"]["exact"]
        for matcher in found(authorization, "metadata_matcher")
        if matcher["filter"] == "envoy.filters.http.jwt_authn"
    ]
    from_header = [
        header["string_match"]["exact"]
        for header in found(authorization, "header")
        if header["name"] == "x-sluice-role"
    ]
    return from_metadata + from_header


def test_only_reads_with_an_access_token_of_this_policy_are_decided_by_envoy() -> None:
    """Envoy asks the auth service about access tokens of another policy: their ownership rules may be old."""
    with_operation = [route for route in edge_routes() if "metadata" in route]
    listed_by_cookie, listed_by_access_token, listed, submit, cancel = with_operation
    assert roles_of(listed_by_cookie) == roles_of(listed_by_access_token) == ["admin", "viewer"]
    prefix = role_access_token_prefix("0123456789abcd")
    assert listed_by_cookie["match"]["headers"][0]["string_match"] == {"contains": f"__Host-sluice-pass={prefix}"}
    assert listed_by_access_token["match"]["headers"][0]["string_match"] == {"prefix": f"Bearer {prefix}"}
    for route in (listed, submit, cancel):
        assert roles_of(route) == []
        assert "ask-always" in route["typed_per_filter_config"]
        assert [each["name"] for each in route["match"]["headers"]] == [":method"]


@pytest.mark.parametrize(
    "header", ["x-sluice-principal", HEADER, REQUEST_ID_HEADER, OPERATION_HEADER, "x-forwarded-host"]
)
def test_identity_headers_are_among_those_removed(header: str) -> None:
    assert header.startswith(REMOVED_PREFIXES) or header in REMOVED_HEADERS


@pytest.mark.parametrize(
    ("host", "names", "expected"),
    [
        ("127.0.0.1", ("localhost",), ["localhost", "127.0.0.1"]),
        (
            "10.0.0.5",
            ("gateway.example", "alias.example"),
            ["gateway.example", "alias.example", "10.0.0.5", "127.0.0.1"],
        ),
        ("::1", ("localhost",), ["localhost", "[::1]", "127.0.0.1"]),
    ],
)
def test_domains_are_those_of_the_certificate(host: str, names: tuple[str, ...], expected: list[str]) -> None:
    assert domains(GatewayConfig(host=host, server_names=names)) == expected


def test_every_local_reply_is_a_problem_document_or_an_html_page_for_browsers() -> None:
    replies: dict[str, Any] = local_replies()
    assert replies["body_format"]["content_type"] == "application/problem+json"
    told = [each for each in replies["mappers"] if "body_format_override" in each]
    pages = [each for each in told if each["body_format_override"]["content_type"] == "text/html; charset=utf-8"]
    # 1. For each status a page, and then a problem document for whoever is left; first what the auth service says.
    assert len(pages) == len(told) - len(pages) == len(LOCAL_DETAILS) + 1
    for each in told:
        people = any("accept" in json.dumps(one) for one in each["filter"].get("and_filter", {}).get("filters", ()))
        assert people is (each in pages)
    # 2. A page brings its policy, loads the style alone, and has no character that Envoy would take for a command.
    for each in pages[1:]:
        text = each["body_format_override"]["text_format_source"]["inline_string"]
        assert "<script" not in text
        assert "%" not in text.replace("%%", "")
        (header,) = each["headers_to_add"]
        assert header["append_action"] == "OVERWRITE_IF_EXISTS_OR_ADD"
        assert "default-src 'none'" in header["header"]["value"]


def test_a_source_that_refers_to_an_unknown_value_is_refused() -> None:
    with pytest.raises(BootstrapError, match="refers to the unknown value"):
        fill({"$value": "secret"}, {})


def test_a_source_that_leaves_out_a_value_is_refused() -> None:
    """A setting that silently has no effect is worse than a missing one."""
    with pytest.raises(BootstrapError, match=r"leaves out .*http_filters"):
        fill({}, {"http_filters": []})


def test_only_whole_comment_lines_are_removed_from_a_source(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonc"
    source.write_text('// a\n{\n  // b\n  "url": "https://x" \n}\n')
    assert load_source(source) == {"url": "https://x"}


@pytest.mark.parametrize("text", ["", "{", '{"a": 1} // trailing'])
def test_damaged_source_is_refused(tmp_path: Path, text: str) -> None:
    source = tmp_path / "source.jsonc"
    source.write_text(text)
    with pytest.raises(BootstrapError, match="not JSON"):
        load_source(source)


def test_missing_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="does not exist"):
        load_source(tmp_path / "none.jsonc")


def test_a_cookie_beside_a_bearer_token_is_refused_before_every_operation() -> None:
    """Envoy would write the claims of both tokens into one header, which no revocation matches."""
    published = (*connect_operations(flight_sql=True), *ROUTES)
    document: Any = route_configuration(GatewayConfig(), published, GRANTS)
    routes = document["virtual_hosts"][0]["routes"]
    (refusal,) = [
        place
        for place, route in enumerate(routes)
        if route.get("direct_response") == {"status": 400}
        and [each["name"] for each in route["match"]["headers"]] == ["cookie", "authorization"]
    ]
    assert refusal < min(place for place, route in enumerate(routes) if "metadata" in route)


def test_all_addresses_of_an_ipv6_network_share_a_rate_limit() -> None:
    (limit,) = rate_limit(GatewayConfig())
    typed: Any = limit["typed_config"]
    masked = {"v4_prefix_mask_len": 32, "v6_prefix_mask_len": 64}
    assert typed["rate_limits"][0]["actions"] == [{"masked_remote_address": masked}]
    assert typed["descriptors"][0]["entries"] == [{"key": "masked_remote_address"}]


@pytest.mark.parametrize("key", ["header_timeout", "stream_idle_timeout", "max_upstream_seconds", "session_idle"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_would_switch_a_protection_off_is_refused(key: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({key: value}, GatewayConfig)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_only_zero_means_no_rate_limit(value: float) -> None:
    msgspec.convert({"address_requests_per_second": 0.0}, GatewayConfig)
    with pytest.raises(msgspec.ValidationError, match="address_requests_per_second"):
        msgspec.convert({"address_requests_per_second": value}, GatewayConfig)
