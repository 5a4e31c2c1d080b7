"""Join tokens on disk: one small file each (0600), made by `sluice pki token create`, removed once used or expired.

Whether a token was used is not written here: the ledger says so, in the same record that says what was issued for it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

import msgspec

from sluice.core import (
    StoreError,
    locked,
    make_private_directory,
    read_secret,
    remove_leftovers,
    sync_directory,
    write_secret,
)
from sluice.pki.identities import JoinToken, TokenRecord, decode_record

MAX_RECORD_BYTES = 64 << 10
MAX_TOKENS = 5000
"""Tokens outstanding at a time."""


class TokenStore:
    """The tokens of the authorities below ``pki``."""

    def __init__(self, pki: Path) -> None:
        self._directory = pki / "ca" / "tokens"

    def add(self, record: TokenRecord, *, now: dt.datetime) -> None:
        """Keep ``record``; those that have expired go."""
        make_private_directory(self._directory)
        with locked(self._directory):
            remove_leftovers(self._directory)
            self._forget_expired(now)
            if len(list(self._directory.glob("*.json"))) >= MAX_TOKENS:
                raise StoreError(f"there are {MAX_TOKENS} join tokens already", "wait until some have expired")
            write_secret(self._path(record.id), msgspec.json.encode(record))

    def find(self, token: JoinToken) -> TokenRecord | None:
        """What is kept of ``token``; None when nothing is."""
        path = self._path(token.id)
        if not path.exists():
            return None
        return decode_record(read_secret(path, MAX_RECORD_BYTES), str(path))

    def remove(self, identifier: str) -> None:
        """Forget a token that was used: tidiness only, the ledger keeps it from being used again."""
        with contextlib.suppress(OSError):
            self._path(identifier).unlink(missing_ok=True)
            sync_directory(self._directory)

    def _forget_expired(self, now: dt.datetime) -> None:
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(StoreError):
                if decode_record(read_secret(path, MAX_RECORD_BYTES), str(path)).expires_at <= now.timestamp():
                    path.unlink(missing_ok=True)

    def _path(self, identifier: str) -> Path:
        return self._directory / f"{identifier}.json"
