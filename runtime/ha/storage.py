"""The HA storage directory: bulky entries under names that are used once, so that nothing is ever overwritten.

Names are relative paths of plain segments. An entry counts only when a pointer names it together with its size and
digest; what no pointer names is rubbish that the next leader removes.
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
"""Largest entry that is held in memory; files (:meth:`HaStorage.put_file`) may be larger."""
COPY_BYTES = 1 << 20

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class StoredEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a pointer says of an entry: its name, size in bytes, and SHA-256."""

    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> StoredEntry:
        """The description of ``data`` under ``name``."""
        return cls(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())

    def check(self, data: bytes) -> bytes:
        """``data`` when it is what was stored; raises :class:`EntryDamaged`."""
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            raise EntryDamaged(
                f"the entry {self.name} of the HA storage has {len(data)} bytes and another digest than the "
                f"{self.size} bytes that were written",
                "restore it, or submit the job again",
            )
        return data


class HaStorage(Protocol):
    """Entries by name; every method but :meth:`read` and :meth:`chunks` raises only ``StorageUnavailable``."""

    def write(self, name: str, data: bytes) -> None:
        """Store an entry; durable and complete when this returns."""
        ...

    def read(self, name: str) -> bytes:
        """An entry; raises ``EntryMissing`` or ``EntryDamaged`` (too large)."""
        ...

    def put_file(self, name: str, source: Path) -> None:
        """Store the content of a file; an entry of that name is replaced."""
        ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """An entry piece by piece, however large; raises ``EntryMissing``."""
        ...

    def names(self, folder: str) -> list[str]:
        """The entries and folders directly in ``folder``, by their last segment; none when there is no folder."""
        ...

    def remove(self, name: str) -> None:
        """Remove an entry, or a folder with all in it; none is no error."""
        ...


def check_name(name: str) -> str:
    """``name`` when it is a relative path of plain segments; raises :class:`HaError`."""
    if not all(_SEGMENT.fullmatch(segment) for segment in name.split("/")):
        raise HaError(f"{name[:120]!r} is not the name of a storage entry")
    return name


class LocalStorage:
    """A directory of this machine, or one that is mounted on all of them."""

    def __init__(self, root: Path) -> None:
        try:
            self._root = make_private_directory(root)
        except StoreError as error:
            raise StorageUnavailable(f"the HA storage cannot be used: {error.what}", error.remedy) from error

    def write(self, name: str, data: bytes) -> None:
        """Store an entry; durable and complete when this returns."""
        try:
            write_secret(self._prepared(name), data)
        except StoreError as error:
            raise StorageUnavailable(error.what, error.remedy) from error

    def read(self, name: str) -> bytes:
        """An entry; raises ``EntryMissing`` or ``EntryDamaged`` (too large)."""
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
        """Store the content of a file: by a hard link where the file system allows it, for blobs never change."""
        target = self._prepared(name)
        temporary = target.with_name(staged_name(target.name))
        try:
            try:
                os.link(source, temporary)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source, temporary)
                temporary.chmod(0o600)
                _flush(temporary)
            temporary.replace(target)
            temporary.unlink(missing_ok=True)  # rename(2) of two links to one file leaves both
            sync_directory(target.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._unavailable(name, error) from error

    def chunks(self, name: str) -> Iterator[bytes]:
        """An entry piece by piece, however large; raises ``EntryMissing``."""
        try:
            with self._path(name).open("rb") as file:
                while chunk := file.read(COPY_BYTES):
                    yield chunk
        except FileNotFoundError:
            raise missing(name) from None
        except OSError as error:
            raise self._unavailable(name, error) from error

    def names(self, folder: str) -> list[str]:
        """The entries and folders directly in ``folder``, by their last segment; none when there is no folder."""
        try:
            return sorted(path.name for path in self._path(folder).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(folder, error) from error

    def remove(self, name: str) -> None:
        """Remove an entry, or a folder with all in it; none is no error."""
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
            f"the HA storage does not give or take {self._root / name}: {error.strerror or error}", "see ha.storage"
        )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def missing(name: str) -> EntryMissing:
    """There is no entry ``name``."""
    return EntryMissing(f"the HA storage has no entry {name}", "restore it, or submit the job again")
