"""When each API token was last used. Kept in its own file, so that using a token never writes the token file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from sluice.core import Home, StoreError, make_private_directory, read_secret, write_secret
from sluice.gateway.credentials.api_tokens import MAX_TOKENS
from sluice.gateway.credentials.record_file import LOCK_SECONDS
from sluice.gateway.shared_store import writers_lock
from sluice.pki.assertions import TokenId

MAX_USE_FILE_BYTES = 1 << 20


def read_last_used(home: Home) -> dict[str, float]:
    """Token id -> seconds since the epoch. Empty when the file cannot be read: it is informational only."""
    try:
        return msgspec.json.decode(read_secret(_file(home), MAX_USE_FILE_BYTES), type=dict[str, float])
    except (StoreError, msgspec.MsgspecError):
        return {}


class TokensLastUsed:
    """Records uses in memory; its owner calls :meth:`flush` every few seconds in a thread.

    A crash loses the uses since the last flush. Several auth services of one home write the same file.
    """

    def __init__(self, home: Home, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._clock = clock
        self._known = read_last_used(home)
        self._used: dict[str, float] = {}
        self._mutex = threading.Lock()

    def used(self, identifier: TokenId) -> None:
        """Note that the token with this id was accepted. Does not wait for the disk."""
        with self._mutex:
            self._used[identifier] = self._clock()

    def flush(self) -> None:
        """Merge the unwritten uses into the file that all auth services of this home share. Call it in a thread."""
        with self._mutex:
            used = dict(self._used)
        if not used:
            return
        path = _file(self._home)
        make_private_directory(path.parent)
        with writers_lock(path.parent, patience=LOCK_SECONDS):
            merged = _later(_later(self._known, read_last_used(self._home)), used)
            if len(merged) > MAX_TOKENS:
                merged = dict(sorted(merged.items(), key=lambda entry: entry[1])[-MAX_TOKENS:])
            write_secret(path, msgspec.json.encode(merged))
        with self._mutex:
            self._known = merged
            for key, moment in used.items():
                if self._used.get(key) == moment:
                    del self._used[key]


def _later(some: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """The later use of each id."""
    return {key: max(some.get(key, 0.0), others.get(key, 0.0)) for key in some.keys() | others.keys()}


def _file(home: Home) -> Path:
    return home.gateway / "token-use.json"
