"""The archive in a backup: a POSIX tar stream of regular files, with a manifest at its end.

Our own code writes and reads it, and supports only regular files: no links, devices, directories or extensions that
could be dangerous. ``tar`` reads it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sluice.cli.backup.errors import BackupDamaged, BackupFailed
from sluice.cli.backup.manifest import MANIFEST, MAX_MANIFEST_BYTES, MAX_MEMBERS, Manifest, Member, decode_manifest

BLOCK = 512
CHUNK_BYTES = 1 << 20
_END = b"\0" * BLOCK

Progress = Callable[[int, int, str], None]
"""Called with how many files are done, how many there are, and the next one's path."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """The content of a small file."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """The first ``size`` bytes of an open file that may grow."""

    path: str
    descriptor: int
    size: int


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A file that no longer changes, but may be compressed meanwhile and then has the suffix ``.gz``."""

    path: str
    place: Path


Content = InMemory | Opened | OnDisk


class ArchiveStream:
    """A readable archive of ``contents``; ``finish`` makes the manifest of what was read.

    ``failure`` is the error that stopped it.
    """

    def __init__(
        self, contents: Sequence[Content], finish: Callable[[tuple[Member, ...]], Manifest], progress: Progress
    ) -> None:
        self._chunks = self._archive(contents, finish, progress)
        self._rest = memoryview(b"")
        self.failure: Exception | None = None

    def read(self, size: int = CHUNK_BYTES, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        try:
            while not self._rest:
                self._rest = memoryview(next(self._chunks))
        except StopIteration:
            return b""
        except Exception as error:
            self.failure = error
            raise
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)

    def _archive(
        self, contents: Sequence[Content], finish: Callable[[tuple[Member, ...]], Manifest], progress: Progress
    ) -> Iterator[bytes]:
        if len(contents) > MAX_MEMBERS:
            raise BackupFailed(f"the home has {len(contents)} files to back up, and at most {MAX_MEMBERS} can be")
        members = []
        for number, content in enumerate(contents):
            progress(number, len(contents), content.path)
            with _reading(content) as (path, size, chunks):
                digest = hashlib.sha256()
                yield _header(path, size)
                left = size
                for chunk in chunks:
                    left -= len(chunk)
                    digest.update(chunk)
                    yield chunk
                if left:
                    raise BackupFailed(f"{path} became shorter while it was read", "try again")
            yield b"\0" * (-size % BLOCK)
            members.append(Member(path, size, digest.hexdigest()))
        progress(len(contents), len(contents), MANIFEST)
        manifest = finish(tuple(members)).encode()
        yield _header(MANIFEST, len(manifest))
        yield manifest + b"\0" * (-len(manifest) % BLOCK)
        yield _END + _END


@contextlib.contextmanager
def _reading(content: Content) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    match content:
        case InMemory():
            yield content.path, len(content.data), iter([content.data] if content.data else [])
        case Opened():
            yield content.path, content.size, _read_opened(content.descriptor, content.size)
        case OnDisk():
            path, descriptor = _open(content)
            try:
                size = os.fstat(descriptor).st_size
                yield path, size, _read_opened(descriptor, size)
            finally:
                os.close(descriptor)


def _open(content: OnDisk) -> tuple[str, int]:
    for suffix in ("", ".gz"):
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            return content.path + suffix, os.open(f"{content.place}{suffix}", flags)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BackupFailed(f"cannot read {content.place}: {error.strerror}") from error
    raise BackupFailed(f"{content.place} disappeared while the home was read", "try again")


def _read_opened(descriptor: int, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size and (chunk := os.pread(descriptor, min(CHUNK_BYTES, size - offset), offset)):
        offset += len(chunk)
        yield chunk


def _header(path: str, size: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o600
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except (ValueError, UnicodeError) as error:
        raise BackupFailed(f"{path[:300]!r} cannot be in a backup: {error}") from error


@dataclass(frozen=True, slots=True)
class Entry:
    """A member that is being read; ``chunks`` gives its content."""

    path: str
    size: int
    chunks: Iterator[bytes]


class ArchiveReader:
    """Reads an archive that is not verified yet and may be forged.

    After the last entry, :attr:`manifest` is set, and lists exactly the members that were read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.manifest: Manifest | None = None

    def entries(self) -> Iterator[Entry]:
        """Each member; read its chunks before the next one. Raises :class:`BackupDamaged`."""
        members: list[Member] = []
        seen: set[str] = set()
        while (header := self._exactly(BLOCK)) != _END:
            path, size = _parse(header)
            if path == MANIFEST:
                self._end(path, size, members)
                return
            if path in seen or len(members) >= MAX_MEMBERS:
                raise BackupDamaged(f"the backup has {path[:200]!r} twice, or more than {MAX_MEMBERS} files")
            seen.add(path)
            digest = hashlib.sha256()
            chunks = self._content(size, digest.update)
            yield Entry(path, size, chunks)
            for _ in chunks:
                pass
            members.append(Member(path, size, digest.hexdigest()))
        raise BackupDamaged("the backup has no manifest")

    def _end(self, path: str, size: int, members: list[Member]) -> None:
        if size > MAX_MANIFEST_BYTES:
            raise BackupDamaged(f"the manifest of the backup is larger than {MAX_MANIFEST_BYTES} bytes")
        manifest = decode_manifest(b"".join(self._content(size, lambda _: None)))
        if list(manifest.members) != members:
            raise BackupDamaged(f"the backup does not have the files that {path} lists")
        if self._exactly(2 * BLOCK) != _END + _END or self._file.read(1):
            raise BackupDamaged("the backup goes on after its end")
        self.manifest = manifest

    def _content(self, size: int, update: Callable[[bytes], object]) -> Iterator[bytes]:
        left = size
        while left:
            chunk = self._exactly(min(left, CHUNK_BYTES))
            left -= len(chunk)
            update(chunk)
            yield chunk
        if any(self._exactly(-size % BLOCK)):
            raise BackupDamaged("the backup has something between its files")

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise BackupDamaged("the backup ends before its manifest")
        return data


def _parse(header: bytes) -> tuple[str, int]:
    try:
        info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
    except (tarfile.TarError, ValueError) as error:
        raise BackupDamaged(f"the backup has something that is no header of a file: {error}") from error
    if info.type != tarfile.REGTYPE or info.linkname or info.size < 0:
        raise BackupDamaged(
            f"the backup has {info.name[:200]!r}, which is not a regular file", "it was not made by Sluice"
        )
    return info.name, info.size
