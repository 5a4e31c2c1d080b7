"""Resumable uploads: a broken upload continues at the offset that the server confirms. Abandoned uploads are removed.

An upload is a directory ``<root>/<id>`` with ``upload.json`` (the announcement and its owner) and ``content`` (the
bytes received so far). Its offset is the length of ``content``, so the next process that serves this directory
continues where the last one ended. The content is valid only when all of it has the announced digest.

Only its owner can access an upload; for others it does not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from sluice.core import SECRET_MODE, SluiceError, end_tasks, make_private_directory, read_bounded, write_secret
from sluice.runtime.blob.errors import (
    BlobCorrupt,
    BlobError,
    BlobTooLarge,
    TooManyUploads,
    UploadConflict,
    UploadNotFound,
)
from sluice.runtime.blob.names import check_digest, check_file_name
from sluice.runtime.messages import BlobRef, Message

_LOG = logging.getLogger(__name__)

MAX_UPLOADS_PER_OWNER = 64
MAX_UPLOADS = 1024
KEPT_SECONDS = 24 * 3600.0
"""An upload that receives nothing for this long is abandoned."""
SWEEP_SECONDS = 600.0
SHARES = 8
"""The uploads of all owners together may have this many times the bytes of one owner's uploads."""
_MAX_NOTE_BYTES = 4096
_ID = re.compile(r"[0-9a-f]{32}")
_NOTE = "upload.json"
_CONTENT = "content"


class Upload(Message, frozen=True):
    """A resumable upload: ``offset`` of ``size`` bytes are received. ``complete``: all are received and verified."""

    id: str
    name: str
    size: int
    sha256: str
    offset: int
    complete: bool
    expires_at: int


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    owner: str
    name: str
    size: int
    sha256: str
    complete: bool = False


class Appending:
    """Appends bytes to one upload, from its offset on, until another request continues the same upload."""

    def __init__(self, file: int, offset: int, size: int, current: Callable[[], bool]) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._current = current

    def write(self, chunk: bytes) -> None:
        """Append ``chunk``. It is stored when this returns.


        Raises:
            UploadConflict: another request has taken over the upload.
            BlobTooLarge: the chunk exceeds the announced size; nothing of it is stored.
        """
        if not self._current():
            raise UploadConflict("another request is writing to this upload", "get its offset first")
        if self._offset + len(chunk) > self._size:
            raise BlobTooLarge(f"the upload has more than the announced {self._size} bytes")
        view = memoryview(chunk)
        try:
            while view:
                written = os.write(self._file, view)
                self._offset, view = self._offset + written, view[written:]
        except OSError as error:
            raise BlobError(f"cannot store an upload: {error.strerror or error}") from error


class UploadStore:
    """All uploads below ``root``. ``max_bytes`` limits the sum of the announced sizes of one owner's uploads."""

    def __init__(self, root: Path, max_bytes: int, *, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._clock = clock
        self._turns: dict[str, int] = {}
        self._creating = threading.Lock()

    def create(
        self,
        owner: str,
        name: str,
        size: int,
        sha256: str,
        *,
        check: Callable[[int], None] = lambda _: None,
    ) -> Upload:
        """Announce an upload. ``check`` gets the total bytes of the owner's uploads including this one, and may raise.

        A lock makes check and creation atomic between threads.


        Raises:
            InvalidBlobName: the name is not a plain file name, or the digest is malformed.
            BlobTooLarge: the owner's uploads would exceed the limit.
            TooManyUploads: the owner, or all owners together, have reached the limit.
        """
        check_file_name(name)
        check_digest(sha256)
        with self._creating:
            return self._create(owner, _Note(owner=owner, name=name, size=size, sha256=sha256), check)

    def _create(self, owner: str, wanted: _Note, check: Callable[[int], None]) -> Upload:
        self.sweep()
        size = wanted.size
        every = list(self._notes())
        own = [note for _, note in every if note.owner == owner]
        if len(own) >= MAX_UPLOADS_PER_OWNER or len(every) >= MAX_UPLOADS:
            raise TooManyUploads(f"{owner} has {len(own)} uploads already", "remove or finish some, or wait a day")
        if size < 0 or sum(note.size for note in own) + size > self._max_bytes:
            raise BlobTooLarge(
                f"the uploads of {owner} would have {sum(note.size for note in own) + size} bytes",
                f"at most {self._max_bytes} (jobmanager.max_blob_bytes)",
            )
        check(sum(note.size for note in own) + size)
        if sum(note.size for _, note in every) + size > SHARES * self._max_bytes:
            raise TooManyUploads("the uploads of all users together are too large", "try again later")
        upload_id = secrets.token_hex(16)
        directory = make_private_directory(make_private_directory(self._root) / upload_id)
        with os.fdopen(os.open(directory / _CONTENT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE), "wb"):
            pass
        write_secret(directory / _NOTE, msgspec.json.encode(wanted))
        return self.get(upload_id, owner)

    def get(self, upload_id: str, owner: str) -> Upload:
        """One upload of ``owner``; raises :class:`UploadNotFound`."""
        return self._view(upload_id, self._note(upload_id, owner))

    def owned(self, owner: str) -> tuple[Upload, ...]:
        """All uploads of ``owner``."""
        found = []
        for upload_id, note in self._notes():
            if note.owner == owner:
                with contextlib.suppress(UploadNotFound):  # another thread has removed it meanwhile
                    found.append(self._view(upload_id, note))
        return tuple(found)

    @contextlib.contextmanager
    def append(self, upload_id: str, owner: str, offset: int) -> Iterator[Appending]:
        """Continue an upload at ``offset``, which must be its current offset. Ends a request that still writes to it.


        Raises:
            UploadNotFound: the upload does not exist, or belongs to another user.
            UploadConflict: the upload is at another offset, or is complete.
        """
        note = self._note(upload_id, owner)
        turn = self._turns[upload_id] = self._turns.get(upload_id, 0) + 1
        path = self._root / upload_id / _CONTENT
        with _not_removed(upload_id):
            present = path.stat().st_size
            if note.complete or present != offset:
                raise UploadConflict(
                    f"upload {upload_id} is at offset {present}, not {offset}", f"continue at offset {present}"
                )
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield Appending(descriptor, offset, note.size, lambda: self._turns.get(upload_id) == turn)
        finally:
            os.close(descriptor)

    def finish(self, upload_id: str, owner: str) -> Upload:
        """Verify an upload once all bytes are received; before that, return it unchanged. Reads the whole content.


        Raises:
            UploadNotFound: the upload does not exist, or belongs to another user.
            BlobCorrupt: the content does not have the announced digest. The upload is removed.
        """
        note = self._note(upload_id, owner)
        path = self._root / upload_id / _CONTENT
        with _not_removed(upload_id):
            if note.complete or path.stat().st_size < note.size:
                return self._view(upload_id, note)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
        if digest != note.sha256:
            self._remove(upload_id)
            raise BlobCorrupt(f"{note.name} has SHA-256 {digest}, expected {note.sha256}", "upload it again")
        whole = msgspec.structs.replace(note, complete=True)
        write_secret(self._root / upload_id / _NOTE, msgspec.json.encode(whole))
        return self._view(upload_id, whole)

    def content(self, upload_id: str, owner: str) -> tuple[BlobRef, Path]:
        """The reference and the path of a complete upload.


        Raises:
            UploadConflict: the upload is not complete.
        """
        note = self._note(upload_id, owner)
        if not note.complete:
            raise UploadConflict(f"upload {upload_id} is not complete", "finish it first")
        return BlobRef(sha256=note.sha256, name=note.name, size=note.size), self._root / upload_id / _CONTENT

    def remove(self, upload_id: str, owner: str) -> None:
        """Remove an upload; raises :class:`UploadNotFound`."""
        self._note(upload_id, owner)
        self._remove(upload_id)

    def sweep(self) -> int:
        """Remove abandoned uploads and return their number."""
        abandoned = [name for name in self._names() if self._touched(name) + KEPT_SECONDS <= self._clock()]
        for name in abandoned:
            self._remove(name)
        return len(abandoned)

    def _note(self, upload_id: str, owner: str) -> _Note:
        note = self._read(upload_id) if _ID.fullmatch(upload_id) else None
        if note is None or note.owner != owner:
            raise UploadNotFound(
                f"there is no upload {upload_id[:64]!r} of yours", "it may have expired: start a new one"
            )
        return note

    def _notes(self) -> Iterator[tuple[str, _Note]]:
        for upload_id in self._names():
            note = self._read(upload_id)
            if note is not None:
                yield upload_id, note

    def _names(self) -> list[str]:
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if _ID.fullmatch(path.name))

    def _read(self, upload_id: str) -> _Note | None:
        """The note of an upload; None if it is missing or incomplete. The sweep removes incomplete uploads later."""
        try:
            return msgspec.json.decode(read_bounded(self._root / upload_id / _NOTE, _MAX_NOTE_BYTES), type=_Note)
        except (OSError, SluiceError, msgspec.DecodeError):
            return None

    def _touched(self, upload_id: str) -> float:
        """When the upload last received something, in epoch seconds."""
        for path in (self._root / upload_id / _CONTENT, self._root / upload_id):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime
        return self._clock()

    def _view(self, upload_id: str, note: _Note) -> Upload:
        with _not_removed(upload_id):
            offset = (self._root / upload_id / _CONTENT).stat().st_size
        return Upload(
            id=upload_id,
            name=note.name,
            size=note.size,
            sha256=note.sha256,
            offset=offset,
            complete=note.complete,
            expires_at=int((self._touched(upload_id) + KEPT_SECONDS) * 1000),
        )

    def _remove(self, upload_id: str) -> None:
        self._turns.pop(upload_id, None)
        shutil.rmtree(self._root / upload_id, ignore_errors=True)


@contextlib.contextmanager
def _not_removed(upload_id: str) -> Iterator[None]:
    """Raises :class:`UploadNotFound` if another thread removes the upload, :class:`BlobError` for other disk errors."""
    try:
        yield
    except FileNotFoundError as error:
        raise UploadNotFound(f"upload {upload_id} no longer exists", "start a new one") from error
    except OSError as error:
        raise BlobError(f"cannot read upload {upload_id}: {error.strerror or error}") from error


@asynccontextmanager
async def sweeping(uploads: UploadStore) -> AsyncIterator[None]:
    """Remove abandoned uploads periodically within the context."""

    async def forever() -> None:
        while True:
            try:
                await asyncio.to_thread(uploads.sweep)
            except (SluiceError, OSError) as error:
                _LOG.warning("cannot remove abandoned uploads now: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    task = asyncio.create_task(forever(), name="sweeping uploads")
    try:
        yield
    finally:
        await end_tasks(task)
