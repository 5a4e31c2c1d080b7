"""The HTTP filters, in the order in which they process a request.

1. Envoy verifies a short-lived access token (bearer or cookie) and copies its claims to metadata and headers.
2. Refuses revoked callers; the revocations come by ECDS, so they also apply to open connections.
3. Rate limits, before the auth service, which they protect too.
4. Saves the text of an access token that came in a cookie for REST, which verifies it again.
5. Without an access token that has a sole role, the auth service decides (opaque tokens, certificates, other access
   tokens).
6. Where an operation depends on more than the role, the auth service decides for access tokens with a sole role, too.
7. Allows what the policy grants to the role, or what the auth service has granted. Denies by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.core import TRACEPARENT_HEADER
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials import ACCESS_TOKEN_COOKIE, AUDIENCE, ISSUER, LEEWAY_SECONDS
from sluice.gateway.envoy_config.check_headers import CHECK_HEADERS, REFUSAL_HEADERS, SUCCESS_HEADERS
from sluice.gateway.envoy_config.headers import ACCESS_TOKEN_ID, CREDENTIAL, OPERATION, PRINCIPAL, ROLE
from sluice.gateway.envoy_config.json_values import FROM_XDS, NOT_ANSWERED, extension, retrying, seconds, typed
from sluice.gateway.envoy_config.limits import rate_limit
from sluice.pki.assertions import ACCESS_TOKEN_SCHEME, HEADER as ASSERTION

ACCESS_TOKEN_CACHE_SIZE = 1000
"""Number of verified access tokens that each worker caches."""

JWT_NAMESPACE = "envoy.filters.http.jwt_authn"
EXT_AUTHZ_NAMESPACE = "envoy.filters.http.ext_authz"
ROUTE_NAMESPACE = "sluice"

COOKIE = "cookie"
CORS = "cors"
ASK = "ask"
ASK_ALWAYS = "ask-always"
AUTHORIZATION = "authorization"
REVOCATIONS = "revocations"
ACCESS_TOKEN = "pass"  # noqa: S105  the name of a filter
"""Names of filters; routes refer to these names."""
ROLE_ACCESS_TOKEN = "role-pass"  # noqa: S105  likewise
"""The JWT requirement of routes for access tokens with a sole role."""

_JWT_AUTHN = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
_JWT_AUTHN_PER_ROUTE = "envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig"
_RBAC = "envoy.extensions.filters.http.rbac.v3.RBAC"
_RBAC_PER_ROUTE = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute"
_EXT_AUTHZ = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz"
_EXT_AUTHZ_PER_ROUTE = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute"
_HEADER_TO_METADATA = "envoy.extensions.filters.http.header_to_metadata.v3.Config"
_ROLE_IN_ACCESS_TOKEN = [{"key": "pass"}, {"key": "role"}]


def http_filters(config: GatewayConfig) -> list[dict[str, object]]:
    """All HTTP filters.

    Two of them come by ECDS, so changes apply to open connections at once. A changed listener would drain the
    connections instead.
    """
    # For an access token with a sole role, the auth service need not be asked.
    no_sole_role = {
        "filter": JWT_NAMESPACE,
        "path": _ROLE_IN_ACCESS_TOKEN,
        "value": {"present_match": True},
        "invert": True,
    }
    sole_role = {"filter": JWT_NAMESPACE, "path": _ROLE_IN_ACCESS_TOKEN, "value": {"present_match": True}}
    return [
        *([extension(CORS, "envoy.extensions.filters.http.cors.v3.Cors")] if config.cors_origins else []),
        _discovered(ACCESS_TOKEN, _JWT_AUTHN),
        _discovered(REVOCATIONS, _RBAC),
        *rate_limit(config),
        {**extension(COOKIE, _HEADER_TO_METADATA), "disabled": True},
        _ext_authz(ASK, config, no_sole_role),
        {**_ext_authz(ASK_ALWAYS, config, sole_role), "disabled": True},
        # Without a policy here, every request that no route allows is refused.
        extension(AUTHORIZATION, _RBAC, rules={"action": "ALLOW", "policies": {}}),
        extension(
            "envoy.filters.http.router",
            "envoy.extensions.filters.http.router.v3.Router",
            suppress_envoy_headers=True,
        ),
    ]


def decided_by_access_token(roles: Iterable[str], operation: str) -> Mapping[str, object]:
    """Per route, for requests with an access token that has a sole role: it must be valid and have one of ``roles``.

    The auth service is not asked, so its filter is disabled for speed. The role is compared as a header, which clients
    cannot write; the other claims are not copied to metadata.
    """
    by_access_token: list[dict[str, object]] = [
        {"header": {"name": ROLE, "string_match": {"exact": role}}} for role in sorted(roles)
    ]
    # If no role is granted: Envoy rejects a configuration with an empty list of principals.
    no_principal: dict[str, object] = {"not_id": {"any": True}}
    policy = {"permissions": [{"any": True}], "principals": by_access_token or [no_principal]}
    return {
        ACCESS_TOKEN: typed(_JWT_AUTHN_PER_ROUTE, requirement_name=ROLE_ACCESS_TOKEN),
        ASK: typed("envoy.config.route.v3.FilterConfig", disabled=True),
        AUTHORIZATION: typed(_RBAC_PER_ROUTE, rbac={"rules": {"action": "ALLOW", "policies": {operation: policy}}}),
    }


def granted_to(roles: Iterable[str], operation: str) -> dict[str, object]:
    """Per route: allows access tokens with one of ``roles``, and requests that the auth service granted ``operation``.

    Envoy and the auth service parse the request separately, so the filter also compares that both found the same
    operation.
    """
    by_access_token = [_metadata(JWT_NAMESPACE, _ROLE_IN_ACCESS_TOKEN, role) for role in sorted(roles)]
    granted = _metadata(EXT_AUTHZ_NAMESPACE, [{"key": OPERATION}], operation)
    # Until the auth service answers, the header for REST holds the client's credential, which REST must never see.
    own = {"header": {"name": ASSERTION, "string_match": {"prefix": ACCESS_TOKEN_SCHEME}, "invert_match": True}}
    by_service = {"and_ids": {"ids": [granted, own]}}
    principals = {"or_ids": {"ids": [*by_access_token, by_service]}}
    policy = {"permissions": [{"any": True}], "principals": [principals]}
    return typed(_RBAC_PER_ROUTE, rbac={"rules": {"action": "ALLOW", "policies": {operation: policy}}})


def asked_always() -> dict[str, object]:
    """Per route: the auth service also decides about access tokens with a sole role."""
    return typed(_EXT_AUTHZ_PER_ROUTE, check_settings={})


def open_route() -> Mapping[str, object]:
    """Per route: open to all callers, with or without credentials; the upstream must authorize them itself."""
    return {
        ASK: typed(_EXT_AUTHZ_PER_ROUTE, disabled=True),
        REVOCATIONS: typed(_RBAC_PER_ROUTE),
        AUTHORIZATION: typed(_RBAC_PER_ROUTE),
    }


def authenticated_route() -> Mapping[str, object]:
    """Per route: open to every authenticated principal, whatever its roles."""
    return {AUTHORIZATION: typed(_RBAC_PER_ROUTE)}


def access_token_filter(jwks: str) -> dict[str, object]:
    """Filter 1: verifies access tokens with this key set (JSON)."""
    common = {
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "require_expiration": True,
        "clock_skew_seconds": LEEWAY_SECONDS,
        "local_jwks": {"inline_string": jwks},
        # Kept for the auth service, which reads the access token again; routes remove it before REST.
        "forward": True,
        "from_headers": [{"name": "authorization", "value_prefix": "Bearer "}],
        "claim_to_headers": [
            {"header_name": PRINCIPAL, "claim_name": "sub"},
            {"header_name": CREDENTIAL, "claim_name": "cred"},
            {"header_name": ACCESS_TOKEN_ID, "claim_name": "jti"},
            {"header_name": ROLE, "claim_name": "role"},
        ],
        "jwt_cache_config": {"jwt_cache_size": ACCESS_TOKEN_CACHE_SIZE},
    }
    any_access_token = {**common, "from_cookies": [ACCESS_TOKEN_COOKIE], "payload_in_metadata": "pass"}
    # An invalid access token counts as missing: filter 5 asks the auth service, which tells the caller the reason.
    either = [{"provider_name": ACCESS_TOKEN}, {"allow_missing_or_failed": {}}]
    return extension(
        ACCESS_TOKEN,
        _JWT_AUTHN,
        providers={ACCESS_TOKEN: any_access_token, ROLE_ACCESS_TOKEN: common},
        requirement_map={ROLE_ACCESS_TOKEN: {"provider_name": ROLE_ACCESS_TOKEN}},
        rules=[{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": either}}}],
    )


def access_token_from_cookie() -> dict[str, object]:
    """Per route: saves the access token from the cookie as metadata, for the header that REST reads."""
    rule = {
        "cookie": ACCESS_TOKEN_COOKIE,
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
            # Decisions are idempotent and may be retried. Each try gets half of the time, in case a service hangs.
            **(
                {"retry_policy": retrying(NOT_ANSWERED, try_seconds=config.authorization_timeout / 2)}
                if config.has_several_auth_services
                else {}
            ),
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"prefix": "x-sluice-"}, {"exact": TRACEPARENT_HEADER}]},
                "allowed_client_headers": {"patterns": [{"exact": header} for header in REFUSAL_HEADERS]},
                "allowed_client_headers_on_success": {"patterns": [{"exact": header} for header in SUCCESS_HEADERS]},
                # Unlike headers, clients cannot write metadata.
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
