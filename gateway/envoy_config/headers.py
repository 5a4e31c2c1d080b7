"""Headers that mean something inside: none of them is believed from outside."""

from __future__ import annotations

from sluice.gateway.credentials import CSRF_HEADER
from sluice.pki.assertions import HEADER as ASSERTION

REMOVED_PREFIXES = ("x-sluice-", "x-forwarded-", "x-envoy-", "x-accel-")
"""Request headers that only the gateway itself may write; matched without regard to case."""
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
"""Request headers that some server somewhere believes instead of the request itself."""

PRINCIPAL = "x-sluice-principal"
CREDENTIAL = "x-sluice-credential"
PASS_ID = "x-sluice-pass-id"  # noqa: S105  the name of a header
ROLE = "x-sluice-role"
"""The one role of a verified pass that tells all it may do."""
OPERATION = "x-sluice-operation"
REQUEST_ID = "x-sluice-request-id"
"""Headers that Envoy and the auth service write for each other and for REST."""
CLIENT_CERTIFICATE = "x-forwarded-client-cert"
NOT_FROM_CLIENTS = (PRINCIPAL, CREDENTIAL, PASS_ID, ROLE, OPERATION, REQUEST_ID)
"""Those of them that are taken out of a request before REST gets it, unless the gateway has written them."""


def header_mutations() -> list[dict[str, object]]:
    """Take out every header a client could use to pass for someone or something else; write the true address.

    Envoy itself would write its own address for a client on the same machine.
    """
    by_prefix: list[dict[str, object]] = [
        {"remove_on_match": {"key_matcher": _beginning_with(prefix)}} for prefix in REMOVED_PREFIXES
    ]
    by_name: list[dict[str, object]] = [{"remove": name} for name in REMOVED_HEADERS]
    address = {"key": "x-forwarded-for", "value": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"}
    # What REST reads. If it is a verified pass, it stays; else the auth service writes something of its own over it.
    credential = {"key": ASSERTION, "value": "%REQ(authorization)%"}
    written: list[dict[str, object]] = [
        {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
        for header in (address, credential)
    ]
    return [*by_prefix, *by_name, *written]


def _beginning_with(prefix: str) -> dict[str, object]:
    """A match of all names with this prefix but the one that clients do send, the CSRF token's."""
    if not CSRF_HEADER.startswith(prefix):
        return {"prefix": prefix, "ignore_case": True}
    spared = CSRF_HEADER.removeprefix(prefix)
    # RE2 cannot say "not this word": so it is something else at its first letter, at its second, …, or goes on.
    others = [f"{spared[:index]}([^{letter}].*)?" for index, letter in enumerate(spared)]
    return {"safe_regex": {"regex": f"(?i){prefix}({'|'.join([*others, f'{spared}.+'])})"}}
