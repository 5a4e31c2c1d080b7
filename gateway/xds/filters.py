"""The HTTP filters, in the order in which a request meets them.

1. A pass (bearer or cookie) is verified by Envoy itself; what is in it becomes metadata and headers.
2. Whoever is revoked is refused; the list comes by ECDS, so that it counts on open connections too.
3. The text of a verified pass is laid aside: it is what REST checks again.
4. Without a pass that tells all, the auth service decides (opaque tokens, certificates, passes without a sole role).
5. Where an operation depends on more than the role, the auth service decides for pass holders, too.
6. Only what the policy grants the role, or the auth service has granted, goes on. Default: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.config import GatewayConfig
from gateway.passes import AUDIENCE, CSRF_HEADER, ISSUER, LEEWAY_SECONDS, PASS_COOKIE
from gateway.xds.headers import CLIENT_CERTIFICATE, CREDENTIAL, OPERATION, PASS_ID, PRINCIPAL, ROLES
from gateway.xds.json_values import FROM_XDS, extension, seconds, typed

PASS_CACHE_SIZE = 1000
"""Verified passes that each worker remembers."""

ASKED_WITH = (
    "authorization",
    "cookie",
    "accept",
    "sec-fetch-mode",
    "x-forwarded-for",
    "x-request-id",
    CSRF_HEADER,
    CLIENT_CERTIFICATE,
)
"""Headers of a request that the auth service learns."""
REFUSED_WITH = ("www-authenticate", "content-type", "location", "cache-control")
"""Headers of the auth service's refusal that the client gets."""

JWT_NAMESPACE = "envoy.filters.http.jwt_authn"
EXT_AUTHZ_NAMESPACE = "envoy.filters.http.ext_authz"
ROUTE_NAMESPACE = "sluice"

ASK = "ask"
ASK_ALWAYS = "ask-always"
AUTHORIZATION = "authorization"
REVOCATIONS = "revocations"
"""Names of filters; routes configure them by name."""

_RBAC = "envoy.extensions.filters.http.rbac.v3.RBAC"
_RBAC_PER_ROUTE = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute"
_EXT_AUTHZ = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz"
_EXT_AUTHZ_PER_ROUTE = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute"
_HEADER_INPUT = "envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
_SKIP = "envoy.extensions.filters.common.matcher.action.v3.SkipFilter"
_ROLE_IN_PASS = [{"key": "pass"}, {"key": "role"}]


def http_filters(config: GatewayConfig, jwks: str) -> list[dict[str, object]]:
    """All of them; ``jwks`` is the key set of passes in JSON."""
    revocations: dict[str, object] = {
        "name": REVOCATIONS,
        "config_discovery": {"config_source": FROM_XDS, "type_urls": [_url(_RBAC)]},
    }
    # A pass whose role tells all it may do: nobody else needs to be asked.
    no_sole_role = {"filter": JWT_NAMESPACE, "path": _ROLE_IN_PASS, "value": {"present_match": True}, "invert": True}
    sole_role = {"filter": JWT_NAMESPACE, "path": _ROLE_IN_PASS, "value": {"present_match": True}}
    return [
        _pass_filter(jwks),
        revocations,
        _lay_pass_aside(),
        _ext_authz(ASK, config, no_sole_role),
        {**_ext_authz(ASK_ALWAYS, config, sole_role), "disabled": True},
        # No policy of its own: what no route allows is refused.
        extension(AUTHORIZATION, _RBAC, rules={"action": "ALLOW", "policies": {}}),
        extension(
            "envoy.filters.http.router",
            "envoy.extensions.filters.http.router.v3.Router",
            suppress_envoy_headers=True,
        ),
    ]


def granted_to(roles: Iterable[str], operation: str) -> dict[str, object]:
    """Per route: pass holders of these roles, and whom the auth service has granted exactly this operation.

    That Envoy and the auth service mean the same operation is compared, too: they read the request separately.
    """
    by_pass = [_metadata(JWT_NAMESPACE, _ROLE_IN_PASS, role) for role in sorted(roles)]
    by_service = _metadata(EXT_AUTHZ_NAMESPACE, [{"key": OPERATION}], operation)
    principals = {"or_ids": {"ids": [*by_pass, by_service]}}
    policy = {"permissions": [{"any": True}], "principals": [principals]}
    return typed(_RBAC_PER_ROUTE, rbac={"rules": {"action": "ALLOW", "policies": {operation: policy}}})


def asked_always() -> dict[str, object]:
    """Per route: the auth service decides even about those whose pass tells their role."""
    return typed(_EXT_AUTHZ_PER_ROUTE, check_settings={})


def open_route() -> Mapping[str, object]:
    """Per route: for everybody, with or without credentials; what is behind must decide by itself."""
    return {
        ASK: typed(_EXT_AUTHZ_PER_ROUTE, disabled=True),
        REVOCATIONS: typed(_RBAC_PER_ROUTE),
        AUTHORIZATION: typed(_RBAC_PER_ROUTE),
    }


def authenticated_route() -> Mapping[str, object]:
    """Per route: for whoever is let in at all, whatever the role."""
    return {AUTHORIZATION: typed(_RBAC_PER_ROUTE)}


def _pass_filter(jwks: str) -> dict[str, object]:
    provider = {
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "require_expiration": True,
        "clock_skew_seconds": LEEWAY_SECONDS,
        "local_jwks": {"inline_string": jwks},
        "payload_in_metadata": "pass",
        # The auth service reads the pass again where it is asked; routes take it out before REST.
        "forward": True,
        "from_headers": [{"name": "authorization", "value_prefix": "Bearer "}],
        "from_cookies": [PASS_COOKIE],
        "claim_to_headers": [
            {"header_name": PRINCIPAL, "claim_name": "sub"},
            {"header_name": ROLES, "claim_name": "role"},
            {"header_name": CREDENTIAL, "claim_name": "cred"},
            {"header_name": PASS_ID, "claim_name": "jti"},
        ],
        "jwt_cache_config": {"jwt_cache_size": PASS_CACHE_SIZE},
    }
    # Failed is as good as missing: filter 4 asks the auth service, which tells the caller why not.
    either = [{"provider_name": "pass"}, {"allow_missing_or_failed": {}}]
    return extension(
        "pass",
        "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        providers={"pass": provider},
        rules=[{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": either}}}],
    )


def _lay_pass_aside() -> dict[str, object]:
    """Only where the pass was verified: another bearer token is a secret that REST must not see.

    That it was, a header tells that nobody else can write.
    """
    verified = {
        "input": {"name": PASS_ID, "typed_config": typed(_HEADER_INPUT, header_name=PASS_ID)},
        "value_match": {"safe_regex": {"google_re2": {}, "regex": ".+"}},
    }
    skip = {"action": {"name": "skip", "typed_config": typed(_SKIP)}}
    target: dict[str, object] = {"metadata_namespace": ROUTE_NAMESPACE, "key": "pass", "type": "STRING"}
    bearer = {"pattern": {"regex": "^Bearer (.+)$"}, "substitution": "\\1"}
    rules = [
        {"header": "authorization", "on_header_present": {**target, "regex_value_rewrite": bearer}},
        {"cookie": PASS_COOKIE, "on_header_present": target},
    ]
    return extension(
        "verified-pass",
        "envoy.extensions.common.matching.v3.ExtensionWithMatcher",
        extension_config=extension(
            "pass-text", "envoy.extensions.filters.http.header_to_metadata.v3.Config", request_rules=rules
        ),
        xds_matcher={
            "matcher_list": {
                "matchers": [
                    {"predicate": {"not_matcher": {"single_predicate": verified}}, "on_match": skip},
                ]
            }
        },
    )


def _ext_authz(name: str, config: GatewayConfig, when: Mapping[str, object]) -> dict[str, object]:
    return extension(
        name,
        _EXT_AUTHZ,
        transport_api_version="V3",
        failure_mode_allow=False,
        status_on_error={"code": "ServiceUnavailable"},
        validate_mutations=True,
        filter_enabled_metadata=when,
        allowed_headers={"patterns": [{"exact": header} for header in ASKED_WITH]},
        http_service={
            "server_uri": {
                "uri": "http://auth",
                "cluster": "auth",
                "timeout": seconds(config.authorization_timeout),
            },
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"prefix": "x-sluice-"}]},
                "allowed_client_headers": {"patterns": [{"exact": header} for header in REFUSED_WITH]},
                "allowed_client_headers_on_success": {"patterns": [{"exact": "set-cookie"}]},
                # Metadata cannot come from outside, whatever headers are called.
                "dynamic_metadata_from_headers": {"patterns": [{"exact": OPERATION}]},
            },
        },
    )


def _metadata(namespace: str, path: list[dict[str, str]], value: str) -> dict[str, object]:
    matcher = {"filter": namespace, "path": path, "value": {"string_match": {"exact": value}}}
    return {"sourced_metadata": {"metadata_matcher": matcher}}


def _url(type_name: str) -> str:
    return f"type.googleapis.com/{type_name}"
