"""The HTTP filters, in the order in which a request meets them.

1. A pass (bearer or cookie) is verified by Envoy itself; what is in it becomes metadata and headers.
2. Whoever is revoked is refused; the list comes by ECDS, so that it counts on open connections too.
3. Nobody asks for more than the limits, least of all the auth service.
4. The text of a pass in a cookie is laid aside: it is what REST checks again.
5. Without a pass that tells all, the auth service decides (opaque tokens, certificates, passes without a sole role).
6. Where an operation depends on more than the role, the auth service decides for pass holders, too.
7. Only what the policy grants the role, or the auth service has granted, goes on. Default: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.core import TRACEPARENT_HEADER
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials import AUDIENCE, ISSUER, LEEWAY_SECONDS, PASS_COOKIE
from sluice.gateway.envoy_config.check_headers import CHECK_HEADERS, REFUSAL_HEADERS, SUCCESS_HEADERS
from sluice.gateway.envoy_config.headers import CREDENTIAL, OPERATION, PASS_ID, PRINCIPAL, ROLE
from sluice.gateway.envoy_config.json_values import FROM_XDS, NOT_ANSWERED, extension, retrying, seconds, typed
from sluice.gateway.envoy_config.limits import rate_limit
from sluice.pki.assertions import HEADER as ASSERTION, PASS_SCHEME

PASS_CACHE_SIZE = 1000
"""Verified passes that each worker remembers."""

JWT_NAMESPACE = "envoy.filters.http.jwt_authn"
EXT_AUTHZ_NAMESPACE = "envoy.filters.http.ext_authz"
ROUTE_NAMESPACE = "sluice"

COOKIE = "cookie"
CORS = "cors"
ASK = "ask"
ASK_ALWAYS = "ask-always"
AUTHORIZATION = "authorization"
REVOCATIONS = "revocations"
PASS = "pass"  # noqa: S105  the name of a filter
"""Names of filters; routes configure them by name."""
ROLE_PASS = "role-pass"  # noqa: S105  likewise
"""The requirement of routes for passes whose role tells all."""

_JWT_AUTHN = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
_JWT_AUTHN_PER_ROUTE = "envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig"
_RBAC = "envoy.extensions.filters.http.rbac.v3.RBAC"
_RBAC_PER_ROUTE = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute"
_EXT_AUTHZ = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz"
_EXT_AUTHZ_PER_ROUTE = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute"
_HEADER_TO_METADATA = "envoy.extensions.filters.http.header_to_metadata.v3.Config"
_ROLE_IN_PASS = [{"key": "pass"}, {"key": "role"}]


def http_filters(config: GatewayConfig) -> list[dict[str, object]]:
    """All of them. Two come by ECDS and change on open connections; a changed listener would not, and drains them."""
    # A pass whose role tells all it may do: nobody else needs to be asked.
    no_sole_role = {"filter": JWT_NAMESPACE, "path": _ROLE_IN_PASS, "value": {"present_match": True}, "invert": True}
    sole_role = {"filter": JWT_NAMESPACE, "path": _ROLE_IN_PASS, "value": {"present_match": True}}
    return [
        *([extension(CORS, "envoy.extensions.filters.http.cors.v3.Cors")] if config.cors_origins else []),
        _discovered(PASS, _JWT_AUTHN),
        _discovered(REVOCATIONS, _RBAC),
        *rate_limit(config),
        {**extension(COOKIE, _HEADER_TO_METADATA), "disabled": True},
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


def decided_by_pass(roles: Iterable[str], operation: str) -> Mapping[str, object]:
    """Per route, for what shows a pass with a role: it is good and has one of these roles, or gets no further.

    Nobody is asked here, so the filters that ask are not even made; and nobody needs all that is in the pass, so its
    role is a header, which no client can write, and the rest is not copied.
    """
    by_pass: list[dict[str, object]] = [
        {"header": {"name": ROLE, "string_match": {"exact": role}}} for role in sorted(roles)
    ]
    # Without a role nobody: an empty list of principals would be an error of the configuration.
    nobody: dict[str, object] = {"not_id": {"any": True}}
    policy = {"permissions": [{"any": True}], "principals": by_pass or [nobody]}
    return {
        PASS: typed(_JWT_AUTHN_PER_ROUTE, requirement_name=ROLE_PASS),
        ASK: typed("envoy.config.route.v3.FilterConfig", disabled=True),
        AUTHORIZATION: typed(_RBAC_PER_ROUTE, rbac={"rules": {"action": "ALLOW", "policies": {operation: policy}}}),
    }


def granted_to(roles: Iterable[str], operation: str) -> dict[str, object]:
    """Per route: pass holders of these roles, and whom the auth service has granted exactly this operation.

    That Envoy and the auth service mean the same operation is compared, too: they read the request separately.
    """
    by_pass = [_metadata(JWT_NAMESPACE, _ROLE_IN_PASS, role) for role in sorted(roles)]
    granted = _metadata(EXT_AUTHZ_NAMESPACE, [{"key": OPERATION}], operation)
    # Until the auth service answers, the header for REST has what the client sent: a secret that REST must never see.
    own = {"header": {"name": ASSERTION, "string_match": {"prefix": PASS_SCHEME}, "invert_match": True}}
    by_service = {"and_ids": {"ids": [granted, own]}}
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
    """Per route: for every authenticated principal, with any role."""
    return {AUTHORIZATION: typed(_RBAC_PER_ROUTE)}


def pass_filter(jwks: str) -> dict[str, object]:
    """Filter 1, from the key set of passes in JSON."""
    common = {
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "require_expiration": True,
        "clock_skew_seconds": LEEWAY_SECONDS,
        "local_jwks": {"inline_string": jwks},
        # The auth service reads the pass again where it is asked; routes take it out before REST.
        "forward": True,
        "from_headers": [{"name": "authorization", "value_prefix": "Bearer "}],
        "claim_to_headers": [
            {"header_name": PRINCIPAL, "claim_name": "sub"},
            {"header_name": CREDENTIAL, "claim_name": "cred"},
            {"header_name": PASS_ID, "claim_name": "jti"},
            {"header_name": ROLE, "claim_name": "role"},
        ],
        "jwt_cache_config": {"jwt_cache_size": PASS_CACHE_SIZE},
    }
    any_pass = {**common, "from_cookies": [PASS_COOKIE], "payload_in_metadata": "pass"}
    # Failed is as good as missing: filter 5 asks the auth service, which tells the caller why not.
    either = [{"provider_name": PASS}, {"allow_missing_or_failed": {}}]
    return extension(
        PASS,
        _JWT_AUTHN,
        providers={PASS: any_pass, ROLE_PASS: common},
        requirement_map={ROLE_PASS: {"provider_name": ROLE_PASS}},
        rules=[{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": either}}}],
    )


def pass_from_cookie() -> dict[str, object]:
    """Per route: the pass of the cookie is laid aside as metadata, for the header that REST reads."""
    rule = {
        "cookie": PASS_COOKIE,
        "on_header_present": {"metadata_namespace": ROUTE_NAMESPACE, "key": "pass", "type": "STRING"},
    }
    return typed(_HEADER_TO_METADATA, request_rules=[rule])


def _ext_authz(name: str, config: GatewayConfig, when: Mapping[str, object]) -> dict[str, object]:
    return extension(
        name,
        _EXT_AUTHZ,
        transport_api_version="V3",
        failure_mode_allow=False,
        status_on_error={"code": "ServiceUnavailable"},
        validate_mutations=True,
        filter_enabled_metadata=when,
        allowed_headers={"patterns": [{"exact": header} for header in CHECK_HEADERS]},
        http_service={
            "server_uri": {
                "uri": "http://auth",
                "cluster": "auth",
                "timeout": seconds(config.authorization_timeout),
            },
            # A decision changes nothing, and may be made twice. Half of the time, for one that hangs.
            **(
                {"retry_policy": retrying(NOT_ANSWERED, try_seconds=config.authorization_timeout / 2)}
                if config.has_several_auth_services
                else {}
            ),
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"prefix": "x-sluice-"}, {"exact": TRACEPARENT_HEADER}]},
                "allowed_client_headers": {"patterns": [{"exact": header} for header in REFUSAL_HEADERS]},
                "allowed_client_headers_on_success": {"patterns": [{"exact": header} for header in SUCCESS_HEADERS]},
                # Metadata cannot come from outside, whatever headers are called.
                "dynamic_metadata_from_headers": {"patterns": [{"exact": OPERATION}]},
            },
        },
    )


def _metadata(namespace: str, path: list[dict[str, str]], value: str) -> dict[str, object]:
    matcher = {"filter": namespace, "path": path, "value": {"string_match": {"exact": value}}}
    return {"sourced_metadata": {"metadata_matcher": matcher}}


def _discovered(name: str, type_name: str) -> dict[str, object]:
    types = [f"type.googleapis.com/{type_name}"]
    return {"name": name, "config_discovery": {"config_source": FROM_XDS, "type_urls": types}}
