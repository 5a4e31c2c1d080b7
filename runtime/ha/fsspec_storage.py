"""HA storage at any URL that fsspec supports: ``s3://…``, ``gs://…``, ``abfs://…``, ``hdfs://…``.

An entry's name is used only once, and a pointer records its size and digest, so the store need not replace files
atomically. Credentials belong into the store's own configuration (environment, instance role), never into the URL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec  # type: ignore[import-untyped]  # has no types

from sluice.runtime.ha.errors import EntryDamaged, HaMisconfigured, StorageUnavailable
from sluice.runtime.ha.storage import COPY_BYTES, MAX_ENTRY_BYTES, check_name, missing


class FsspecStorage:
    """A :class:`~sluice.runtime.ha.storage.HaStorage` at a URL.

    Raises:
        HaMisconfigured: fsspec does not support the store, its package is not installed, or the URL has a password.
    """

    def __init__(self, url: str) -> None:
        if urlsplit(url).password is not None:
            raise HaMisconfigured("ha.storage holds a password", "move it to the store's own configuration")
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise HaMisconfigured(f"ha.storage: {error}", "install the package that fsspec names") from error
        self._url = url

    def write(self, name: str, data: bytes) -> None:
        """Store an entry. It is complete and durable when this returns."""
        with self._available(name):
            self._prepare(name)
            self._files.pipe_file(self._path(name), data)

    def read(self, name: str) -> bytes:
        """Return an entry; raises ``EntryMissing``, or ``EntryDamaged`` when it is too large."""
        with self._available(name), self._files.open(self._path(name), "rb") as file:
            data: bytes = file.read(MAX_ENTRY_BYTES + 1)
        if len(data) > MAX_ENTRY_BYTES:
            raise EntryDamaged(f"the entry {name} of the HA storage is larger than {MAX_ENTRY_BYTES} bytes")
        return data

    def put_file(self, name: str, source: Path) -> None:
        """Store the content of a file, replacing an entry of that name."""
        with self._available(name):
            self._prepare(name)
            self._files.put_file(str(source), self._path(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield an entry of any size in chunks; raises ``EntryMissing``."""
        with self._available(name), self._files.open(self._path(name), "rb") as file:
            while chunk := file.read(COPY_BYTES):
                yield chunk

    def names(self, folder: str) -> list[str]:
        """The last segments of the entries and folders directly in ``folder``; empty when it does not exist."""
        path = self._path(folder)
        try:
            self._files.invalidate_cache(path)
            found: list[Any] = self._files.ls(path, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:  # every store raises its own exceptions
            raise self._unavailable(folder, error) from error
        return sorted({str(each).rstrip("/").rpartition("/")[2] for each in found})

    def remove(self, name: str) -> None:
        """Remove an entry, or a folder with its content; do nothing when it does not exist."""
        try:
            self._files.rm(self._path(name), recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._unavailable(name, error) from error

    def _prepare(self, name: str) -> None:
        parent = self._path(name).rpartition("/")[0]
        self._files.makedirs(parent, exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    @contextlib.contextmanager
    def _available(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise missing(name) from None
        except Exception as error:
            raise self._unavailable(name, error) from error

    def _unavailable(self, name: str, error: Exception) -> StorageUnavailable:
        return StorageUnavailable(
            f"the HA storage cannot read or write {self._url}/{name}: {type(error).__name__}", "check ha.storage"
        )
