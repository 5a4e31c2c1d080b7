"""The routes: for each operation that REST publishes, routes with the policy's decision about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass

from sluice.core import url_host
from sluice.gateway.authz import PARAMETER_PATTERN, TARGET_PATTERN, Route
from sluice.gateway.config import GatewayConfig
from sluice.gateway.connect import connect_route, is_connect
from sluice.gateway.credentials import ACCESS_TOKEN_COOKIE, CSRF_HEADER, SAFE_METHODS, role_access_token_prefix
from sluice.gateway.envoy_config.filters import (
    ASK_ALWAYS,
    AUTHORIZATION,
    COOKIE,
    CORS,
    ROUTE_NAMESPACE,
    access_token_from_cookie,
    asked_always,
    authenticated_route,
    decided_by_access_token,
    granted_to,
    open_route,
)
from sluice.gateway.envoy_config.headers import CLIENT_CERTIFICATE
from sluice.gateway.envoy_config.http3 import alternative_service
from sluice.gateway.envoy_config.json_values import NOT_ANSWERED, NOT_SENT, exact_header, retrying, seconds, typed
from sluice.pki.assertions import ACCESS_TOKEN_SCHEME, HEADER as ASSERTION

REMOVED_TOWARDS_REST = ("authorization", "proxy-authorization", "cookie", CLIENT_CERTIFICATE)
"""Headers with credentials, removed before REST: it gets the principal, never the credential."""

NO_OPERATION = "none"
"""An operation that no policy grants."""
MAX_AUTH_REQUEST_BYTES = 64 << 10
"""Maximum body size of requests to the auth service; forms and tokens are small."""
DISCOVERY_PATH = "/.well-known/openid-configuration"
TOKEN_KEYS_PATH = "/.well-known/jwks.json"  # noqa: S105  a path
DISCOVERY_PATHS = (DISCOVERY_PATH, TOKEN_KEYS_PATH)
"""Paths that need no credentials: OpenID Connect discovery of the trust domain."""
_Condition = Mapping[str, object]
_WITH_ACCESS_TOKEN_COOKIE: _Condition = {"name": "cookie", "string_match": {"contains": f"{ACCESS_TOKEN_COOKIE}="}}


@dataclass(frozen=True, slots=True)
class Grants:
    """The part of the policy that Envoy enforces.

    Attributes:
        roles: role -> operations that it grants, including those granted on own resources only; REST reads in the
            access token which ones these are, and compares the owner.
        policy: the digest of the policy. Access tokens of another policy may have other owner rules, so Envoy asks the
            auth service about them.
    """

    roles: Mapping[str, AbstractSet[str]]
    policy: str = ""

    def of(self, operation: str) -> list[str]:
        """The roles that grant ``operation``."""
        return sorted(role for role, operations in self.roles.items() if operation in operations)

    @property
    def with_access_token(self) -> _Condition:
        """Condition: the request has an access token with a sole role, issued under this policy."""
        prefix = f"{ACCESS_TOKEN_SCHEME}{role_access_token_prefix(self.policy)}"
        return {"name": "authorization", "string_match": {"prefix": prefix}}

    @property
    def with_cookie(self) -> _Condition:
        """Condition: the request has such a token in a cookie. Requests with two are refused by an earlier route."""
        text = f"{ACCESS_TOKEN_COOKIE}={role_access_token_prefix(self.policy)}"
        return {"name": "cookie", "string_match": {"contains": text}}


def route_configuration(config: GatewayConfig, published: tuple[Route, ...], grants: Grants) -> dict[str, object]:
    """The resource ``edge`` for RDS, in JSON."""
    routes: list[dict[str, object]] = [
        *_preflight(config),
        *_auth_routes(config),
        *_discovery_routes(config),
        *_refusals_of_two_credentials(),
    ]
    for route in published:
        if is_connect(route):
            routes += _to_relay(route, grants)
    routes += _refusals(config)
    for route in published:
        if is_connect(route):
            continue
        routes += _operation_routes(config, route, grants)
    nowhere = _direct(404)
    routes.append(nowhere)
    return {
        "name": "edge",
        "virtual_hosts": [
            {
                "name": "cluster",
                # Only the names in the certificate: a request for another Host (DNS rebinding) reaches nothing.
                "domains": domains(config),
                "response_headers_to_add": _response_headers(config),
                "routes": routes,
                **_cors(config),
            },
            {"name": "nobody", "domains": ["*"], "routes": [nowhere]},
        ],
    }


def domains(config: GatewayConfig) -> list[str]:
    """The served hosts: names and addresses of the edge certificate."""
    names = dict.fromkeys([*config.server_names, config.host, "127.0.0.1"])
    return [url_host(name) for name in names]


def _refusals_of_two_credentials() -> list[dict[str, object]]:
    """Refusals of requests whose credentials could name two principals: one that Envoy checks, another that is used.

    Envoy would also write the claims of both access tokens into the same headers, which no revocation matches then. So
    these routes come before every route of an operation, those of the relay included.
    """
    bearer_too: _Condition = {"name": "authorization", "present_match": True}
    twice: _Condition = {
        "name": "cookie",
        "string_match": {"safe_regex": {"regex": f".*{ACCESS_TOKEN_COOKIE}=.*{ACCESS_TOKEN_COOKIE}=.*"}},
    }
    return [_direct(400, [_WITH_ACCESS_TOKEN_COOKIE, other]) for other in (bearer_too, twice)]


def _refusals(config: GatewayConfig) -> list[dict[str, object]]:
    """Refusals that depend on the headers only.

    Bodies are streamed, never buffered, so ``Content-Length`` must declare their size (RFC 9110 section 15.5.12 allows
    a server to require it); the HTTP codecs enforce the declared length.
    """
    too_large: _Condition = {
        "name": "content-length",
        "range_match": {"start": config.max_request_bytes + 1, "end": 2**63 - 1},
    }
    undeclared: _Condition = {"name": "content-length", "present_match": True, "invert_match": True}
    sends_body: _Condition = {"name": ":method", "string_match": {"safe_regex": {"regex": "POST|PUT"}}}
    chunked: _Condition = {"name": "transfer-encoding", "present_match": True}
    unsafe: _Condition = {
        "name": ":path",
        "string_match": {"safe_regex": {"regex": TARGET_PATTERN}},
        "invert_match": True,
    }
    refusals: tuple[tuple[int, list[_Condition]], ...] = (
        (400, [unsafe]),
        (413, [too_large]),
        (411, [chunked]),
        (411, [sends_body, undeclared]),
    )
    return [_direct(status, conditions) for status, conditions in refusals]


def _direct(status: int, headers: Sequence[Mapping[str, object]] = ()) -> dict[str, object]:
    """A direct response of Envoy, for authenticated principals."""
    match: dict[str, object] = {"prefix": "/"}
    if headers:
        match["headers"] = list(headers)
    return {
        "match": match,
        "direct_response": {"status": status},
        "typed_per_filter_config": dict(authenticated_route()),
    }


def _auth_routes(config: GatewayConfig) -> list[dict[str, object]]:
    """Sign-in, exchange and sign-out: requests to the auth service itself, without an authorization check."""
    too_large = {"name": "content-length", "range_match": {"start": MAX_AUTH_REQUEST_BYTES + 1, "end": 2**63 - 1}}
    refusal: dict[str, object] = {
        "match": {"path_separated_prefix": "/auth", "headers": [too_large]},
        "direct_response": {"status": 413},
        "typed_per_filter_config": dict(open_route()),
    }
    everything = _to_auth(config, {"path_separated_prefix": "/auth"}, NOT_SENT)
    if not config.has_several_auth_services:
        return [refusal, everything]
    reads = exact_header(":method", "GET")
    # One of several auth services may die before it responds: retry reads, and exchanges, which only issue a token.
    return [
        refusal,
        _to_auth(config, {"path_separated_prefix": "/auth", "headers": [reads]}, NOT_ANSWERED),
        _to_auth(config, {"path": "/auth/exchange"}, NOT_ANSWERED),
        everything,
    ]


def _to_auth(
    config: GatewayConfig, match: Mapping[str, object], retry_on: str, removed: Sequence[str] = ()
) -> dict[str, object]:
    retry = {"retry_policy": retrying(retry_on)} if config.has_several_auth_services else {}
    return {
        "match": dict(match),
        "route": {"cluster": "auth", "timeout": seconds(config.request_timeout), **retry},
        "request_headers_to_remove": [*removed, ASSERTION],
        "typed_per_filter_config": dict(open_route()),
    }


def _discovery_routes(config: GatewayConfig) -> list[dict[str, object]]:
    """Discovery and keys of jobs' tokens: open to all callers without credentials, with the rate limit per address."""
    read: _Condition = {"name": ":method", "string_match": {"safe_regex": {"regex": "GET|HEAD"}}}
    return [
        _to_auth(config, {"path": path, "headers": [read]}, NOT_ANSWERED, REMOVED_TOWARDS_REST)
        for path in DISCOVERY_PATHS
    ]


def _operation_routes(config: GatewayConfig, route: Route, grants: Grants) -> list[dict[str, object]]:
    """For reads, three routes: for sole-role access tokens in cookies, for the other ones, and for all other callers.

    For writes, Envoy always asks the auth service, which compares the CSRF token of callers with a cookie, and signs an
    assertion for this one request, while an access token would be valid for many.
    """
    asked = _to_rest(config, route, {AUTHORIZATION: granted_to((), route.operation), ASK_ALWAYS: asked_always()})
    if route.method not in SAFE_METHODS:
        return [asked]
    roles = grants.of(route.operation)
    laid_aside = {AUTHORIZATION: granted_to(roles, route.operation), COOKIE: access_token_from_cookie()}
    by_cookie = _to_rest(config, route, laid_aside, grants.with_cookie)
    by_access_token = _to_rest(config, route, decided_by_access_token(roles, route.operation), grants.with_access_token)
    return [by_cookie, by_access_token, asked]


def _to_relay(route: Route, grants: Grants) -> list[dict[str, object]]:
    """Two routes to the relay: for sole-role access tokens, and for all other callers.

    They come before the refusals, because gRPC declares no length.
    """

    def to_relay(filters: Mapping[str, object], *conditions: _Condition) -> dict[str, object]:
        return connect_route(
            route,
            metadata={"filter_metadata": {ROUTE_NAMESPACE: {"operation": route.operation}}},
            removed=REMOVED_TOWARDS_REST,
            filters=filters,
            conditions=conditions,
        )

    by_access_token = {AUTHORIZATION: granted_to(grants.of(route.operation), route.operation)}
    asked = {AUTHORIZATION: granted_to((), route.operation), ASK_ALWAYS: asked_always()}
    return [to_relay(by_access_token, grants.with_access_token), to_relay(asked)]


def _to_rest(
    config: GatewayConfig, route: Route, filters: Mapping[str, object], *conditions: Mapping[str, object]
) -> dict[str, object]:
    """A route to REST. A stream has no total timeout; ``stream_idle_timeout`` ends a silent one."""
    return {
        "match": {**path_match(route.path), "headers": [*conditions, exact_header(":method", route.method)]},
        "route": {"cluster": "rest", "timeout": "0s" if route.stream else seconds(config.request_timeout)},
        "metadata": {"filter_metadata": {ROUTE_NAMESPACE: {"operation": route.operation}}},
        "request_headers_to_remove": list(REMOVED_TOWARDS_REST),
        "request_headers_to_add": [
            # An existing value comes from the auth service, or is the verified access token.
            _added(ASSERTION, f"%DYNAMIC_METADATA({ROUTE_NAMESPACE}:pass)%", "ADD_IF_ABSENT"),
        ]
        if COOKIE in filters
        else [],
        "typed_per_filter_config": dict(filters),
    }


def _added(name: str, value: str, action: str) -> dict[str, object]:
    return {"header": {"key": name, "value": value}, "append_action": action}


def path_match(template: str) -> dict[str, object]:
    """The path condition of a route; ``{name}`` matches one segment."""
    if "{" not in template:
        return {"path": template}
    segments = [PARAMETER_PATTERN if part.startswith("{") else part.replace(".", "[.]") for part in template.split("/")]
    return {"safe_regex": {"regex": "/".join(segments)}}


RESPONSE_HEADERS: Mapping[str, str] = {
    "strict-transport-security": "max-age=31536000",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Headers of every response; they replace those of the upstream."""
DEFAULT_HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of responses in which the upstream does not set them; pages with scripts have their own policy."""


def _response_headers(config: GatewayConfig) -> list[dict[str, object]]:
    alternative = {"alt-svc": alternative_service(config)} if config.http3 else {}
    return [
        *(
            _added(name, value, "OVERWRITE_IF_EXISTS_OR_ADD")
            for name, value in {**RESPONSE_HEADERS, **alternative}.items()
        ),
        *(_added(name, value, "ADD_IF_ABSENT") for name, value in DEFAULT_HEADERS.items()),
    ]


def _preflight(config: GatewayConfig) -> list[dict[str, object]]:
    """A route on which the CORS filter answers preflight requests for all paths.

    The filter needs a route with a cluster, but no request reaches that cluster.
    """
    if not config.cors_origins:
        return []
    asks: _Condition = {"name": "access-control-request-method", "present_match": True}
    return [
        {
            "match": {"prefix": "/", "headers": [exact_header(":method", "OPTIONS"), asks]},
            "route": {"cluster": "rest"},
            "request_headers_to_remove": [*REMOVED_TOWARDS_REST, ASSERTION],
            "typed_per_filter_config": {AUTHORIZATION: granted_to((), NO_OPERATION)},
        }
    ]


def _cors(config: GatewayConfig) -> dict[str, object]:
    if not config.cors_origins:
        return {}
    policy = typed(
        "envoy.extensions.filters.http.cors.v3.CorsPolicy",
        allow_origin_string_match=[{"exact": origin} for origin in config.cors_origins],
        allow_methods="GET, POST, PATCH, DELETE",
        allow_headers=f"authorization, content-type, {CSRF_HEADER}",
        allow_credentials=True,
        max_age="600",
        # Preflight requests from other origins are not forwarded.
        forward_not_matching_preflights=False,
    )
    return {"typed_per_filter_config": {CORS: policy}}
