"""The token file: one writer at a time, replaced atomically, readable by its owner alone."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from sluice.core import SECRET_MODE, CachedFile, Home, make_private_directory, read_secret, write_secret
from sluice.gateway.credentials.api_tokens import DEFAULT_TTL, TokenBook, TokenRecord
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.session_store import revoke_sessions
from sluice.gateway.errors import InvalidTokenRequest, TokenStoreError
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions import TokenId

MAX_TOKEN_FILE_BYTES = 4 << 20
LOCK_TIMEOUT_SECONDS = 10.0
_LOCK_POLL_SECONDS = 0.02


def token_file(home: Home) -> Path:
    """Where the tokens of ``home``'s cluster are kept."""
    return home.gateway / "tokens.json"


def token_snapshot(home: Home) -> CachedFile[TokenBook]:
    """The tokens for a reader that runs for long; no file means no tokens."""
    return CachedFile(token_file(home), _read, missing=TokenBook())


def _read(path: Path) -> TokenBook:
    return TokenBook.decode(read_secret(path, MAX_TOKEN_FILE_BYTES))


def create_token(home: Home, *, name: str, role: str, lifetime: dt.timedelta = DEFAULT_TTL) -> str:
    """Create a token for principal ``name`` and return it; it cannot be shown again."""
    return TokenStore(home).create(name, role, lifetime)[1]


class TokenStore:
    """Reads and changes the token file of one cluster."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = token_file(home)
        self._revocations = Revocations.of(home)

    def read(self) -> TokenBook:
        """The tokens as they are; raises when the file is damaged or readable by others."""
        if not self._path.exists():
            return TokenBook()
        return _read(self._path)

    def create(
        self,
        name: str,
        role: str,
        lifetime: dt.timedelta,
        *,
        scopes: tuple[str, ...] = (),
        roles: Collection[str] = tuple(AccessRole),
    ) -> tuple[TokenRecord, str]:
        """Make a token; returns what is kept of it, and the token. ``roles`` are those that there are."""
        if role not in roles:
            raise InvalidTokenRequest(f"{role!r} is not a role", f"one of {', '.join(roles)}")
        with self._locked():
            book, record, token = self.read().mint(name, str(role), ttl=lifetime, now=time.time(), scopes=scopes)
            self._write(book)
        return record, token

    def revoke(self, identifier: TokenId) -> TokenRecord:
        """Revoke the token with this id for good; the auth service refuses it from its next request on."""
        with self._locked():
            book = self.read().revoke(identifier, now=time.time())
            self._write(book)
        record = book.find(identifier)
        # The passes it was exchanged for end too; without a set to put it in, the token itself is revoked all the same.
        self._revocations.revoke(("token", identifier), until=record.expires_at)
        # And the browsers that signed in with it.
        revoke_sessions(self._home, lambda session: session.token == identifier)
        return record

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the writer's lock; the kernel releases it however the process ends."""
        make_private_directory(self._path.parent)
        lock = os.open(self._path.with_name("tokens.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, SECRET_MODE)
        try:
            self._acquire(lock)
            yield
        finally:
            os.close(lock)

    def _write(self, book: TokenBook) -> None:
        data = book.encode()
        if len(data) > MAX_TOKEN_FILE_BYTES:
            raise TokenStoreError(f"the token file would be larger than {MAX_TOKEN_FILE_BYTES} bytes")
        write_secret(self._path, data)

    def _acquire(self, lock: int) -> None:
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TokenStoreError(
                        f"{self._path} has been locked by another process for {LOCK_TIMEOUT_SECONDS:.0f} s",
                        "try again when it is done",
                    ) from error
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                return
