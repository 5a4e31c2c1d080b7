"""Headers with a meaning inside the cluster. They are never accepted from clients."""

from __future__ import annotations

from sluice.gateway.credentials import CSRF_HEADER
from sluice.pki.assertions import HEADER as ASSERTION

REMOVED_PREFIXES = ("x-sluice-", "x-forwarded-", "x-envoy-", "x-accel-")
"""Prefixes of request headers that only the gateway may write; matched case-insensitively."""
REMOVED_HEADERS = (
    "forwarded",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-real-ip",
    "x-request-id",
    "x-rewrite-url",
)
"""Request headers that some servers trust more than the request itself."""

PRINCIPAL = "x-sluice-principal"
CREDENTIAL = "x-sluice-credential"
ACCESS_TOKEN_ID = "x-sluice-pass-id"  # noqa: S105  the name of a header
ROLE = "x-sluice-role"
"""The sole role of a verified access token."""
OPERATION = "x-sluice-operation"
REQUEST_ID = "x-sluice-request-id"
"""Headers that Envoy and the auth service write for each other and for REST."""
CLIENT_CERTIFICATE = "x-forwarded-client-cert"
NOT_FROM_CLIENTS = (PRINCIPAL, CREDENTIAL, ACCESS_TOKEN_ID, ROLE, OPERATION, REQUEST_ID)
"""The headers that are removed from a request before REST gets it, unless the gateway wrote them."""


def header_mutations() -> list[dict[str, object]]:
    """Remove every header that a client could use to impersonate another caller; write the client's real address.

    For a client on the same machine, Envoy would write its own address by default.
    """
    by_prefix: list[dict[str, object]] = [
        {"remove_on_match": {"key_matcher": _beginning_with(prefix)}} for prefix in REMOVED_PREFIXES
    ]
    by_name: list[dict[str, object]] = [{"remove": name} for name in REMOVED_HEADERS]
    address = {"key": "x-forwarded-for", "value": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"}
    # The header that REST reads. A verified access token stays in it; otherwise the auth service overwrites it.
    credential = {"key": ASSERTION, "value": "%REQ(authorization)%"}
    written: list[dict[str, object]] = [
        {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
        for header in (address, credential)
    ]
    return [*by_prefix, *by_name, *written]


def _beginning_with(prefix: str) -> dict[str, object]:
    """A match of all names with this prefix, except the CSRF header, which clients send."""
    if not CSRF_HEADER.startswith(prefix):
        return {"prefix": prefix, "ignore_case": True}
    spared = CSRF_HEADER.removeprefix(prefix)
    # RE2 has no negative lookahead: match names that differ at the first letter, at the second, …, or are longer.
    others = [f"{spared[:index]}([^{letter}].*)?" for index, letter in enumerate(spared)]
    return {"safe_regex": {"regex": f"(?i){prefix}({'|'.join([*others, f'{spared}.+'])})"}}
