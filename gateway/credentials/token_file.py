"""The token file: one writer at a time, replaced atomically, readable by its owner only."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection
from pathlib import Path

from sluice.core import CachedFile, Home
from sluice.gateway.credentials.api_tokens import DEFAULT_TTL, TokenBook, TokenRecord
from sluice.gateway.credentials.record_file import RecordFile
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.session_store import revoke_sessions
from sluice.gateway.errors import InvalidTokenRequest, TokenStoreError
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions import TokenId

MAX_TOKEN_FILE_BYTES = 4 << 20


def token_file(home: Home) -> Path:
    """The path of the token file of ``home``'s cluster."""
    return home.gateway / "tokens.json"


def token_snapshot(home: Home) -> CachedFile[TokenBook]:
    """The tokens for a long-running reader; without a file there are none."""
    return _file(home).cached()


def _file(home: Home) -> RecordFile[TokenBook]:
    return RecordFile(token_file(home), TokenBook, MAX_TOKEN_FILE_BYTES, TokenStoreError)


def create_token(home: Home, *, name: str, role: str, lifetime: dt.timedelta = DEFAULT_TTL) -> str:
    """Create a token for principal ``name`` and return it; it cannot be shown again."""
    return TokenStore(home).create(name, role, lifetime)[1]


class TokenStore:
    """Reads and changes the token file of one cluster."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._file = _file(home)
        self._revocations = Revocations.of(home)

    def read(self) -> TokenBook:
        """Read the tokens from disk; raises when the file is damaged or readable by others."""
        return self._file.read()

    def create(
        self,
        name: str,
        role: str,
        lifetime: dt.timedelta,
        *,
        scopes: tuple[str, ...] = (),
        roles: Collection[str] = tuple(AccessRole),
    ) -> tuple[TokenRecord, str]:
        """Create a token; returns its stored record and the token itself. ``roles`` are the roles that exist."""
        if role not in roles:
            raise InvalidTokenRequest(f"{role!r} is not a role", f"one of {', '.join(roles)}")
        with self._file.locked():
            book, record, token = self.read().mint(name, str(role), ttl=lifetime, now=time.time(), scopes=scopes)
            self._file.write(book)
        return record, token

    def revoke(self, identifier: TokenId) -> TokenRecord:
        """Revoke the token with this id permanently; the auth service refuses it from the next request on."""
        with self._file.locked():
            book = self.read().revoke(identifier, now=time.time())
            self._file.write(book)
        record = book.find(identifier)
        # Also ends its access tokens. The token is revoked already, even if this fails.
        self._revocations.revoke(("token", identifier), until=record.expires_at)
        # Also ends the sessions of browsers that signed in with it.
        revoke_sessions(self._home, lambda session: session.token == identifier)
        return record
