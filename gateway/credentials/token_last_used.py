"""When each API token was last used. A file of its own, so that using a token never writes the token file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sluice.core import Home, StoreError, make_private_directory, read_secret, write_secret
from sluice.gateway.credentials.api_tokens import MAX_TOKENS
from sluice.pki.assertions import TokenId

MAX_USE_FILE_BYTES = 1 << 20


def read_last_used(home: Home) -> dict[str, float]:
    """Token id -> seconds since the epoch; empty when the file cannot be read, since nothing depends on it."""
    try:
        return msgspec.json.decode(read_secret(_file(home), MAX_USE_FILE_BYTES), type=dict[str, float])
    except (StoreError, msgspec.MsgspecError):
        return {}


class TokensLastUsed:
    """Records uses in memory; its owner calls :meth:`flush` every few seconds in a thread.

    A crash loses the uses since the last flush.
    """

    def __init__(self, home: Home, clock: Callable[[], float] = time.time) -> None:
        self._path = _file(home)
        self._clock = clock
        self._used = read_last_used(home)
        self._dirty = False
        self._mutex = threading.Lock()
        self._writer = threading.Lock()

    def used(self, identifier: TokenId) -> None:
        """The token with this id was accepted. Waits for no disk."""
        with self._mutex:
            self._used[identifier] = self._clock()
            self._dirty = True

    def flush(self) -> None:
        """Write what has not been written; for a thread, for it waits for the disk."""
        with self._writer:
            with self._mutex:
                if not self._dirty:
                    return
                if len(self._used) > MAX_TOKENS:
                    newest = sorted(self._used.items(), key=lambda entry: entry[1])[-MAX_TOKENS:]
                    self._used = dict(newest)
                used, self._dirty = dict(self._used), False
            try:
                make_private_directory(self._path.parent)
                write_secret(self._path, msgspec.json.encode(used))
            except BaseException:
                with self._mutex:
                    self._dirty = True
                raise


def _file(home: Home) -> Path:
    return home.gateway / "token-use.json"
