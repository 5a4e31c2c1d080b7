"""Join tokens as values: made, recognised, expired. No files, no clocks, no sockets.

A token reads ``slj_<id>_<secret>_<fingerprint>``. The id finds the record. Of the secret (256 random bits, so that a
plain hash is enough) only the SHA-256 is stored. The fingerprint (SHA-256 of its certificate) tells the bearer which
authority to trust before it sends the secret. A token is valid once, for one role and name, for a short time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from cryptography import x509

from sluice.core import CertificateRejected, StoreError
from sluice.pki.errors import EnrolmentRefused
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509 import DAMAGED_JSON, Names, Purpose, fingerprint

MAX_TTL = dt.timedelta(hours=24)
DEFAULT_TTL = dt.timedelta(minutes=15)
MIN_TTL = dt.timedelta(seconds=10)
MAX_TOKEN_BYTES = 256
"""Longest text that is parsed as a token."""

ENROLLABLE = frozenset(
    {
        Role.JOBMANAGER,
        Role.TASKMANAGER,
        Role.SHUFFLE_MANAGER,
        Role.SHUFFLE_WORKER,
        Role.GATEWAY,
        Role.AUTH,
        Role.ZOOKEEPER,
    }
)
"""Roles that a token can be for: processes of the internal side, but no authority, job or user."""

_TOKEN = re.compile(r"slj_([0-9a-f]{12})_([0-9a-f]{64})_([0-9a-f]{64})")
_NO_DIGEST = hashlib.sha256(b"no such token").hexdigest()


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored record of a token, which is not enough to use it.

    Times are seconds since the epoch. ``edge_server``: for a gateway's public certificate, not for its internal
    identity.
    """

    version: Literal[1] = 1
    id: str
    sha256: str
    identity: str
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    edge_server: bool = False
    created_at: int
    expires_at: int

    def names(self) -> Names:
        """The names of the certificate."""
        return Names.checked(SpiffeId.parse(self.identity), self.dns, self.ips)


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A parsed token; ``text`` is the whole token, and secret."""

    id: str
    fingerprint: str
    text: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Raises :class:`EnrolmentRefused` (which never quotes the text)."""
        match = _TOKEN.fullmatch(text) if len(text) <= MAX_TOKEN_BYTES else None
        if match is None:
            raise EnrolmentRefused("this is not a join token", "make one with `sluice pki token create`")
        return cls(match[1], match[3], text)


def mint(
    spiffe_id: SpiffeId,
    authority: x509.Certificate,
    *,
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
    edge_server: bool = False,
    ttl: dt.timedelta = DEFAULT_TTL,
    now: dt.datetime,
) -> tuple[TokenRecord, str]:
    """Make a token; returns the record to store, and the token itself, which is not stored.

    ``edge_server`` makes one for the public certificate of a gateway, for exactly the given host names.

    Raises:
        CertificateRejected: the role has no tokens, a name is invalid, or the lifetime is not allowed.
    """
    if spiffe_id.role not in ENROLLABLE:
        raise CertificateRejected(
            f"no join token for role {spiffe_id.role}", f"tokens are for {', '.join(sorted(ENROLLABLE))}"
        )
    if not MIN_TTL <= ttl <= MAX_TTL:
        raise CertificateRejected(f"a token cannot live {ttl}", f"use {MIN_TTL.seconds} seconds to {MAX_TTL.days} day")
    names = Names.checked(spiffe_id, dns, ips)
    if edge_server and (spiffe_id.role is not Role.GATEWAY or not (names.dns or names.ips)):
        raise CertificateRejected(
            f"no public certificate is possible for {spiffe_id} with these names",
            "it is for a gateway, with the host names and addresses that clients use",
        )
    names.check_wildcards((Purpose.SERVER,) if edge_server else (Purpose.CLIENT, Purpose.SERVER))
    identifier = secrets.token_hex(6)
    text = f"slj_{identifier}_{secrets.token_hex(32)}_{fingerprint(authority)}"
    seconds = int(now.timestamp())
    record = TokenRecord(
        id=identifier,
        sha256=_digest(text),
        identity=str(spiffe_id),
        dns=names.dns,
        ips=names.ips,
        edge_server=edge_server,
        created_at=seconds,
        expires_at=seconds + int(ttl.total_seconds()),
    )
    return record, text


def check_token(token: JoinToken, record: TokenRecord | None, *, used: bool, now: dt.datetime) -> TokenRecord:
    """Return ``record`` when ``token`` is valid at ``now``; else raise :class:`EnrolmentRefused`."""
    # 1. Compared in constant time, and against a dummy if the id is unknown, so that timing does not reveal which ids
    # exist.
    expected = _NO_DIGEST if record is None else record.sha256
    if not hmac.compare_digest(_digest(token.text), expected) or record is None or record.id != token.id:
        raise EnrolmentRefused(
            "the join token is not known, or was used already", "make a new one with `sluice pki token create`"
        )
    # 2. A requester without the secret does not learn whether the token was used or has expired.
    if used:
        raise EnrolmentRefused(
            f"join token {record.id} was used already", "if not by you, find out by whom: `sluice pki ledger show`"
        )
    if not record.created_at - MAX_TTL.total_seconds() <= now.timestamp() < record.expires_at:
        raise EnrolmentRefused(f"join token {record.id} has expired", "make a new one with `sluice pki token create`")
    return record


def decode_record(data: bytes, where: str) -> TokenRecord:
    """Decode a stored record; raises :class:`StoreError` when it is damaged."""
    try:
        return msgspec.json.decode(data, type=TokenRecord)
    except DAMAGED_JSON as error:
        raise StoreError(f"{where} is damaged: {error}", "remove it and make a new token") from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
