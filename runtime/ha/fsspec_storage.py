"""The HA storage behind any URL that fsspec knows: ``s3://…``, ``gs://…``, ``abfs://…``, ``hdfs://…``.

Entries have names that are used once, and a pointer with size and digest, so the store need not be able to replace a
file atomically. Credentials are for the store's own configuration (environment, instance role), never for the URL.
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
        HaMisconfigured: fsspec knows no such store, or its package is not installed; or the URL holds a password.
    """

    def __init__(self, url: str) -> None:
        if urlsplit(url).password is not None:
            raise HaMisconfigured("ha.storage holds a password", "give it to the store's own configuration")
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise HaMisconfigured(f"ha.storage: {error}", "install the package that fsspec names") from error
        self._url = url

    def write(self, name: str, data: bytes) -> None:
        """Store an entry; durable and complete when this returns."""
        with self._available(name):
            self._prepare(name)
            self._files.pipe_file(self._path(name), data)

    def read(self, name: str) -> bytes:
        """An entry; raises ``EntryMissing`` or ``EntryDamaged`` (too large)."""
        with self._available(name), self._files.open(self._path(name), "rb") as file:
            data: bytes = file.read(MAX_ENTRY_BYTES + 1)
        if len(data) > MAX_ENTRY_BYTES:
            raise EntryDamaged(f"the entry {name} of the HA storage is larger than {MAX_ENTRY_BYTES} bytes")
        return data

    def put_file(self, name: str, source: Path) -> None:
        """Store the content of a file; an entry of that name is replaced."""
        with self._available(name):
            self._prepare(name)
            self._files.put_file(str(source), self._path(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """An entry piece by piece, however large; raises ``EntryMissing``."""
        with self._available(name), self._files.open(self._path(name), "rb") as file:
            while chunk := file.read(COPY_BYTES):
                yield chunk

    def names(self, folder: str) -> list[str]:
        """The entries and folders directly in ``folder``, by their last segment; none when there is no folder."""
        path = self._path(folder)
        try:
            self._files.invalidate_cache(path)
            found: list[Any] = self._files.ls(path, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:  # every store has errors of its own
            raise self._unavailable(folder, error) from error
        return sorted({str(each).rstrip("/").rpartition("/")[2] for each in found})

    def remove(self, name: str) -> None:
        """Remove an entry, or a folder with all in it; none is no error."""
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
            f"the HA storage does not give or take {self._url}/{name}: {type(error).__name__}", "see ha.storage"
        )
