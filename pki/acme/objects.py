"""Accounts, orders, authorizations, challenges and external account keys, as stored. Values only.

Times are seconds since the epoch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

import msgspec

from sluice.pki.acme.identifiers import Identifier
from sluice.pki.acme.jwk import Jwk


class Status(enum.StrEnum):
    """Of an account, an order, an authorization, or a challenge (RFC 8555, 7.1.6)."""

    PENDING = "pending"
    PROCESSING = "processing"
    READY = "ready"
    VALID = "valid"
    INVALID = "invalid"
    DEACTIVATED = "deactivated"
    REVOKED = "revoked"


class ChallengeType(enum.StrEnum):
    """The method by which a client proves that it controls a name."""

    HTTP = "http-01"
    TLS_ALPN = "tls-alpn-01"
    DNS = "dns-01"


class ExternalKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that `sluice pki acme account create` makes, valid for one account.

    ``secret`` is base64url; the file it is in has mode 0600.
    """

    version: Literal[1] = 1
    id: str
    name: str
    secret: str
    names: tuple[str, ...]
    created: float
    expires: float
    """When the key expires; an account made with it does not."""
    account: str = ""
    """The account that was made with it."""
    revoked: bool = False

    def __repr__(self) -> str:
        return f"ExternalKey(id={self.id!r}, name={self.name!r})"


class Account(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account; ``external`` is the id of the key that it was made with, if it needed one."""

    version: Literal[1] = 1
    id: str
    jwk: Jwk
    thumbprint: str
    status: Status = Status.VALID
    contact: tuple[str, ...] = ()
    external: str = ""
    name: str = ""
    names: tuple[str, ...] | None = None
    """The patterns that limit its names; None: only those of the configuration."""
    created: float


class StoredProblem(msgspec.Struct, frozen=True):
    """Why something became invalid."""

    type: str
    detail: str
    status: int


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """One way to prove control of a name; ``token`` is public, but unguessable."""

    type: ChallengeType
    token: str
    status: Status = Status.PENDING
    validated: float = 0.0
    error: StoredProblem | None = None


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of control of one name of one order; ``identifier`` has no asterisk."""

    identifier: Identifier
    wildcard: bool = False
    status: Status = Status.PENDING
    challenges: tuple[Challenge, ...]


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order with its authorizations; none is shared with another order."""

    version: Literal[1] = 1
    id: str
    account: str
    identifiers: tuple[Identifier, ...]
    status: Status = Status.PENDING
    created: float
    expires: float
    authorizations: tuple[Authorization, ...]
    serial: str = ""
    """Of the certificate, hexadecimal."""
    error: StoredProblem | None = None


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An issued certificate, kept until it expires."""

    version: Literal[1] = 1
    serial: str
    account: str
    identifiers: tuple[Identifier, ...]
    sha256: str
    not_after: float
    chain_pem: str


@dataclass(frozen=True, slots=True)
class ValidationTask:
    """A challenge to be validated."""

    order: str
    index: int
    account: str
    account_names: tuple[str, ...] | None
    identifier: Identifier
    type: ChallengeType
    token: str
    key_authorization: str
