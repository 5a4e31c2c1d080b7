"""Join tokens on disk: one small file each (0600), made by `sluice pki token create`, removed once used or expired.

Only the ledger records that a token was used, in the record of the issued certificate. The answers are kept beside the
tokens, in ``used``, until the token would have expired: a requester that did not receive its answer may ask another
authority of the home.
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
from sluice.pki.x509 import DAMAGED_JSON

MAX_RECORD_BYTES = 64 << 10
MAX_TOKENS = 5000
"""Most outstanding tokens."""


class UsedToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token with the chain that was, or was about to be, issued for it: the ledger knows which."""

    record: TokenRecord
    chain_pem: str


class TokenStore:
    """The tokens of the authorities below ``pki``."""

    def __init__(self, pki: Path) -> None:
        self._directory = pki / "ca" / "tokens"
        self._used = self._directory / "used"

    def add(self, record: TokenRecord, *, now: dt.datetime) -> None:
        """Store ``record``, and remove expired ones."""
        make_private_directory(self._directory)
        with locked(self._directory):
            remove_leftovers(self._directory)
            self._forget_expired(now)
            if len(list(self._directory.glob("*.json"))) >= MAX_TOKENS:
                raise StoreError(f"there are {MAX_TOKENS} join tokens already", "wait until some have expired")
            write_secret(self._path(record.id), msgspec.json.encode(record))

    def find(self, token: JoinToken) -> TokenRecord | None:
        """The record of ``token``; None: there is none."""
        path = self._path(token.id)
        if not path.exists():
            return None
        return decode_record(read_secret(path, MAX_RECORD_BYTES), str(path))

    def remember(self, used: UsedToken) -> None:
        """Store the answer before it is sent; raises :class:`StoreError`."""
        make_private_directory(self._directory)
        make_private_directory(self._used)
        write_secret(self._used / f"{used.record.id}.json", msgspec.json.encode(used))

    def used(self, token: JoinToken) -> UsedToken | None:
        """The stored answer for ``token``; None: nothing readable."""
        path = self._used / f"{token.id}.json"
        if not path.exists():
            return None
        return _used(path)

    def remove(self, identifier: str) -> None:
        """Remove a used token: only a cleanup, because the ledger prevents its reuse."""
        with contextlib.suppress(OSError):
            self._path(identifier).unlink(missing_ok=True)
            sync_directory(self._directory)

    def _forget_expired(self, now: dt.datetime) -> None:
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(StoreError):
                if decode_record(read_secret(path, MAX_RECORD_BYTES), str(path)).expires_at <= now.timestamp():
                    path.unlink(missing_ok=True)
        for path in self._used.glob("*.json"):
            if (used := _used(path)) is None or used.record.expires_at <= now.timestamp():
                path.unlink(missing_ok=True)

    def _path(self, identifier: str) -> Path:
        return self._directory / f"{identifier}.json"


def _used(path: Path) -> UsedToken | None:
    try:
        return msgspec.json.decode(read_secret(path, MAX_RECORD_BYTES), type=UsedToken)
    except (StoreError, *DAMAGED_JSON):
        return None  # then the token is simply used
