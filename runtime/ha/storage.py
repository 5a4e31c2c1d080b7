"""The HA storage directory for large entries. Each name is used only once, so no entry is ever overwritten.

Names are relative paths of plain segments. An entry is valid only when a pointer records its name, size and digest.
The next leader removes entries that no pointer names.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from sluice.core import StoreError, make_private_directory, staged_name, sync_directory, write_secret
from sluice.runtime.ha.errors import EntryDamaged, EntryMissing, HaError, StorageUnavailable

MAX_ENTRY_BYTES = 16 << 20
"""Largest entry that is read into memory; files (:meth:`HaStorage.put_file`) may be larger."""
COPY_BYTES = 1 << 20

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class StoredEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer's description of an entry: its name, size in bytes, and SHA-256."""

    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> StoredEntry:
        """Describe ``data``, stored under ``name``."""
        return cls(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())

    def check(self, data: bytes) -> bytes:
        """Return ``data`` if its size and digest match; raise :class:`EntryDamaged` otherwise."""
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            raise EntryDamaged(
                f"the entry {self.name} of the HA storage is damaged: it has {len(data)} bytes and does not match the "
                f"digest of the {self.size} bytes that were written",
                "restore it, or submit the job again",
            )
        return data


class HaStorage(Protocol):
    """Stores entries by name. Methods other than :meth:`read` and :meth:`chunks` raise only ``StorageUnavailable``."""

    def write(self, name: str, data: bytes) -> None:
        """Store an entry. It is complete and durable when this returns."""
        ...

    def read(self, name: str) -> bytes:
        """Return an entry; raises ``EntryMissing``, or ``EntryDamaged`` when it is too large."""
        ...

    def put_file(self, name: str, source: Path) -> None:
        """Store the content of a file, replacing an entry of that name."""
        ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield an entry of any size in chunks; raises ``EntryMissing``."""
        ...

    def names(self, folder: str) -> list[str]:
        """The last segments of the entries and folders directly in ``folder``; empty when it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Remove an entry, or a folder with its content; do nothing when it does not exist."""
        ...


def check_name(name: str) -> str:
    """Return ``name`` if it is a relative path of plain segments; raise :class:`HaError` otherwise."""
    if not all(_SEGMENT.fullmatch(segment) for segment in name.split("/")):
        raise HaError(f"{name[:120]!r} is not a valid name of a storage entry")
    return name


class LocalStorage:
    """HA storage in a directory of this machine, or in one that all machines mount."""

    def __init__(self, root: Path) -> None:
        try:
            self._root = make_private_directory(root)
        except StoreError as error:
            raise StorageUnavailable(f"the HA storage cannot be used: {error.what}", error.remedy) from error

    def write(self, name: str, data: bytes) -> None:
        """Store an entry. It is complete and durable when this returns."""
        try:
            write_secret(self._prepared(name), data)
        except StoreError as error:
            raise StorageUnavailable(error.what, error.remedy) from error

    def read(self, name: str) -> bytes:
        """Return an entry; raises ``EntryMissing``, or ``EntryDamaged`` when it is too large."""
        try:
            with self._path(name).open("rb") as file:
                data = file.read(MAX_ENTRY_BYTES + 1)
        except FileNotFoundError:
            raise missing(name) from None
        except OSError as error:
            raise self._unavailable(name, error) from error
        if len(data) > MAX_ENTRY_BYTES:
            raise EntryDamaged(f"the entry {name} of the HA storage is larger than {MAX_ENTRY_BYTES} bytes")
        return data

    def put_file(self, name: str, source: Path) -> None:
        """Store the content of a file, by a hard link where the file system allows it (blobs never change)."""
        target = self._prepared(name)
        temporary = target.with_name(staged_name(target.name))
        try:
            try:
                os.link(source, temporary)
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(source, temporary)
                temporary.chmod(0o600)
                _flush(temporary)
            temporary.replace(target)
            temporary.unlink(missing_ok=True)  # rename(2) does nothing when both names are links to the same file
            sync_directory(target.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._unavailable(name, error) from error

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield an entry of any size in chunks; raises ``EntryMissing``."""
        try:
            with self._path(name).open("rb") as file:
                while chunk := file.read(COPY_BYTES):
                    yield chunk
        except FileNotFoundError:
            raise missing(name) from None
        except OSError as error:
            raise self._unavailable(name, error) from error

    def names(self, folder: str) -> list[str]:
        """The last segments of the entries and folders directly in ``folder``; empty when it does not exist."""
        try:
            return sorted(path.name for path in self._path(folder).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(folder, error) from error

    def remove(self, name: str) -> None:
        """Remove an entry, or a folder with its content; do nothing when it does not exist."""
        path = self._path(name)
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unavailable(name, error) from error

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)

    def _prepared(self, name: str) -> Path:
        path = self._path(name)
        try:
            make_private_directory(path.parent)
        except StoreError as error:
            raise StorageUnavailable(error.what, error.remedy) from error
        return path

    def _unavailable(self, name: str, error: OSError) -> StorageUnavailable:
        return StorageUnavailable(
            f"the HA storage cannot read or write {self._root / name}: {error.strerror or error}", "check ha.storage"
        )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def missing(name: str) -> EntryMissing:
    """Return the error for a missing entry ``name``."""
    return EntryMissing(f"the HA storage has no entry {name}", "restore it, or submit the job again")
