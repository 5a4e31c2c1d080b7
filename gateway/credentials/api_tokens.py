"""API tokens as values: creation, authentication, expiry, revocation. No files, no clocks, no sockets.

A token has the form ``slc_<id>_<secret>``. The id selects the record; only the SHA-256 of the whole token is stored.
The secret has 256 random bits, so a plain hash is enough (a password would need a slow one). Times are seconds since
the epoch and always passed in.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from sluice.gateway.authz import is_pattern
from sluice.gateway.errors import InvalidTokenRequest, TokenNotFound, TokenStoreError
from sluice.gateway.principal import is_role
from sluice.pki.assertions import Credential, Principal, TokenId

MAX_TOKENS = 5000
"""Tokens in one store."""
MAX_NAME_CHARACTERS = 64
MAX_SCOPES = 32
MAX_TTL = dt.timedelta(days=366)
DEFAULT_TTL = dt.timedelta(days=30)
FORGET_AFTER = dt.timedelta(days=30)
"""Creating a token removes the tokens that expired or were revoked longer ago than this."""

_ID_BYTES = 6
_SECRET_BYTES = 32
_TOKEN = re.compile(r"slc_([0-9a-f]{12})_([0-9a-f]{64})")
_TOKEN_LIKE = re.compile(r"(sl[cs]_[0-9a-f]{12})_[0-9A-Za-z]+")
"""Also matches session secrets (``sls_``), which this module does not store."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_NO_DIGEST = hashlib.sha256(b"no such token").hexdigest()


class Refusal(enum.Enum):
    """Why a credential was not accepted."""

    MISSING = "no credential was given"
    MALFORMED = "the credential is not a token of this cluster"
    UNKNOWN = "the token is not known"
    REVOKED = "the token was revoked"
    EXPIRED = "the token has expired"
    NOT_ACCEPTED = "the credential is not accepted"
    LOCKED = "the user is locked out"


class Unauthenticated(Exception):
    """The caller is not authenticated. ``credential`` is the id of the token, set when its secret was correct."""

    def __init__(self, refusal: Refusal, credential: str = "", reason: str = "") -> None:
        """``reason`` is for the log and more precise than ``refusal``."""
        super().__init__(reason or refusal.value)
        self.refusal = refusal
        self.credential = credential
        self.reason = reason or refusal.value


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored part of a token. It does not contain the secret."""

    id: TokenId
    name: str
    role: str
    sha256: str
    created_at: int
    expires_at: int
    revoked_at: int | None = None
    scopes: tuple[str, ...] = ()

    def state(self, now: float) -> Literal["active", "expired", "revoked"]:
        """The state of the token at ``now``."""
        if self.revoked_at is not None:
            return "revoked"
        return "active" if now < self.expires_at else "expired"

    @property
    def ended_at(self) -> int:
        """When the token stopped or will stop being valid."""
        return self.expires_at if self.revoked_at is None else min(self.revoked_at, self.expires_at)


class _TokenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    tokens: tuple[TokenRecord, ...] = ()


class TokenBook:
    """All tokens of a cluster. Immutable: changes return a new book."""

    def __init__(self, records: Iterable[TokenRecord] = ()) -> None:
        self._records: Mapping[TokenId, TokenRecord] = {record.id: record for record in records}

    @property
    def records(self) -> tuple[TokenRecord, ...]:
        """All tokens, in the order of creation."""
        return tuple(self._records.values())

    @classmethod
    def decode(cls, data: bytes) -> TokenBook:
        """Decode the file format; raises :class:`TokenStoreError` when the content is invalid."""
        try:
            file = msgspec.json.decode(data, type=_TokenFile)
        except msgspec.MsgspecError as error:
            raise TokenStoreError(f"the token file is damaged: {error}", "restore it from a backup") from error
        book = cls(file.tokens)
        if len(book._records) != len(file.tokens):
            raise TokenStoreError("the token file has the same id twice", "restore it from a backup")
        for record in file.tokens:
            if not is_role(record.role) or not all(is_pattern(scope) for scope in record.scopes):
                raise TokenStoreError(f"the token file is damaged: token {record.id[:20]!r} has no role, or odd scopes")
        return book

    def encode(self) -> bytes:
        """Encode to the file format."""
        return msgspec.json.format(msgspec.json.encode(_TokenFile(tokens=self.records)), indent=1)

    def mint(
        self, name: str, role: str, *, ttl: dt.timedelta, now: float, scopes: tuple[str, ...] = ()
    ) -> tuple[TokenBook, TokenRecord, str]:
        """Create a token for ``name``; returns the new book, the record, and the token itself, which is not stored."""
        if not all(is_pattern(scope) for scope in scopes) or len(scopes) > MAX_SCOPES:
            raise InvalidTokenRequest(
                f"{', '.join(scopes)[:200]!r} are not scopes",
                f"at most {MAX_SCOPES} operations, as in jobs.read or jobs.*",
            )
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
            raise InvalidTokenRequest(
                f"{name[:80]!r} cannot be a principal's name",
                f"use letters, digits, '.', '_', '@' and '-', at most {MAX_NAME_CHARACTERS}",
            )
        if not dt.timedelta(seconds=1) <= ttl <= MAX_TTL:
            raise InvalidTokenRequest(f"a lifetime of {ttl} is not possible", f"at most {MAX_TTL.days} days")
        kept = [record for record in self.records if now - record.ended_at < FORGET_AFTER.total_seconds()]
        if len(kept) >= MAX_TOKENS:
            raise InvalidTokenRequest(
                f"there are {len(kept)} tokens already", "revoke some, or give them shorter lives"
            )
        identifier = TokenId(secrets.token_hex(_ID_BYTES))
        while identifier in self._records:
            identifier = TokenId(secrets.token_hex(_ID_BYTES))
        token = f"slc_{identifier}_{secrets.token_hex(_SECRET_BYTES)}"
        record = TokenRecord(
            id=identifier,
            name=name,
            role=role,
            sha256=_digest(token),
            created_at=int(now),
            expires_at=int(now + ttl.total_seconds()),
            scopes=scopes,
        )
        return TokenBook([*kept, record]), record, token

    def get(self, identifier: TokenId) -> TokenRecord | None:
        """The token with this id, if there is one."""
        return self._records.get(identifier)

    def find(self, identifier: TokenId) -> TokenRecord:
        """The token with this id; raises :class:`TokenNotFound`."""
        record = self._records.get(identifier)
        if record is None:
            raise TokenNotFound(f"there is no token {redact(identifier)[:80]!r}", "see `sluice token list`")
        return record

    def revoke(self, identifier: TokenId, *, now: float) -> TokenBook:
        """Revoke the token with this id. Idempotent. Raises :class:`TokenNotFound`."""
        record = self.find(identifier)
        if record.revoked_at is not None:
            return self
        revoked = msgspec.structs.replace(record, revoked_at=int(now))
        return TokenBook({**self._records, identifier: revoked}.values())

    def authenticate(self, presented: str, *, now: float) -> Principal:
        """The owner of the token ``presented``; raises :class:`Unauthenticated`."""
        # 1. The format first: text in another format is neither hashed nor looked up.
        match = _TOKEN.fullmatch(presented)
        if match is None:
            raise Unauthenticated(Refusal.MALFORMED)
        # 2. Compare in constant time, and compare even when the id is unknown, so that timing does not reveal
        #    which ids exist.
        record = self._records.get(TokenId(match[1]))
        expected = _NO_DIGEST if record is None else record.sha256
        if not hmac.compare_digest(_digest(presented), expected) or record is None:
            raise Unauthenticated(Refusal.UNKNOWN)
        # 3. Only a caller that knows the secret learns that the token was revoked or has expired.
        match record.state(now):
            case "revoked":
                raise Unauthenticated(Refusal.REVOKED, record.id)
            case "expired":
                raise Unauthenticated(Refusal.EXPIRED, record.id)
            case "active":
                credential = Credential.of_token(record.id)
                return Principal(record.name, (record.role,), "token", credential, scopes=record.scopes)


def redact(text: str) -> str:
    """Replace the secret part of everything in ``text`` that looks like a token, for logs and messages."""
    return _TOKEN_LIKE.sub(r"\1_(secret)", text)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
