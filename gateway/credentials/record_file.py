"""The files of tokens, sessions and users: replaced atomically, bounded in size, readable by their owner only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from sluice.core import CachedFile, make_private_directory, read_secret, write_secret
from sluice.gateway.errors import GatewayError
from sluice.gateway.shared_store import writers_lock

LOCK_SECONDS = 10.0
"""How long a writer waits for the lock."""


class Book(Protocol):
    """All records of one kind, immutable. Without arguments the constructor makes an empty book."""

    def __init__(self) -> None: ...

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the file format."""

    def encode(self) -> bytes:
        """Encode to the file format."""


_Book = TypeVar("_Book", bound=Book)


class RecordFile(Generic[_Book]):
    """The file at ``path``, of at most ``max_bytes``; a missing file is an empty book."""

    def __init__(self, path: Path, book: type[_Book], max_bytes: int, error: Callable[[str], GatewayError]) -> None:
        self.path = path
        self._book = book
        self._max_bytes = max_bytes
        self._error = error

    def read(self) -> _Book:
        """Read the records from disk; raises when the file is damaged or readable by others."""
        return self._read(self.path) if self.path.exists() else self._book()

    def cached(self) -> CachedFile[_Book]:
        """The records for a long-running reader."""
        return CachedFile(self.path, self._read, missing=self._book())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writers' lock.

        Raises:
            StoreError: another process does not release the lock in time.
            SharedStoreError: the home shares the file through a database that cannot be used.
        """
        make_private_directory(self.path.parent)
        with writers_lock(self.path.parent, patience=LOCK_SECONDS):
            yield

    def write(self, book: _Book) -> None:
        """Replace the file; raises the error type of this file when the content is too large."""
        data = book.encode()
        if len(data) > self._max_bytes:
            raise self._error(f"{self.path} would be larger than {self._max_bytes} bytes")
        make_private_directory(self.path.parent)
        write_secret(self.path, data)

    def _read(self, path: Path) -> _Book:
        return self._book.decode(read_secret(path, self._max_bytes))
