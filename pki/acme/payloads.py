"""Payloads of requests, decoded into declared types and bounded."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sluice.pki.acme.problems import malformed
from sluice.pki.x509 import DAMAGED_JSON

_T = TypeVar("_T", bound=msgspec.Struct)


class NewAccount(msgspec.Struct):
    """RFC 8555, 7.3; undeclared members are ignored, as 6.1 says."""

    contact: list[str] = []
    onlyReturnExisting: bool = False  # noqa: N815  the protocol's name
    externalAccountBinding: Any = None  # noqa: N815  the protocol's name


class AccountUpdate(msgspec.Struct):
    """RFC 8555, 7.3.2 and 7.3.6."""

    contact: list[str] | None = None
    status: str | None = None


class AskedIdentifier(msgspec.Struct):
    """RFC 8555, 7.1.3."""

    type: str
    value: str


class NewOrder(msgspec.Struct):
    """RFC 8555, 7.4."""

    identifiers: list[AskedIdentifier]
    notBefore: Any = None  # noqa: N815  the protocol's name
    notAfter: Any = None  # noqa: N815  the protocol's name


class AuthorizationUpdate(msgspec.Struct):
    """RFC 8555, 7.5.2."""

    status: str


class Finalize(msgspec.Struct):
    """RFC 8555, 7.4; DER in base64url."""

    csr: str


class RevokeCert(msgspec.Struct):
    """RFC 8555, 7.6; DER in base64url."""

    certificate: str
    reason: int = 0


class KeyChange(msgspec.Struct):
    """RFC 8555, 7.3.5: the payload of the inner JWS."""

    account: str
    oldKey: dict[str, Any]  # noqa: N815  the protocol's name


def read(payload: bytes, kind: type[_T]) -> _T:
    """Decode a payload; :class:`AcmeProblem` says which member is wrong, and no value."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except DAMAGED_JSON as error:
        raise malformed(f"not a payload of this resource: {error}") from None


def require_empty(payload: bytes) -> None:
    """Refuse anything but a POST-as-GET (RFC 8555, 6.3)."""
    if payload:
        raise malformed("this resource is read with an empty payload")
