"""Content-addressed files per job: ``<root>/<job_id>/<sha256>``. Content that several jobs share is on disk once.

A blob appears under its digest only when it is complete and verified. Until then it is a temporary file that the writer
removes on any failure. Files that a crash leaves are in the folders of jobs, which each new leader removes first. Only
a leader may do that: JobManagers that stand by open the same store.

``<root>/shared`` contains a second hard link for each blob. Only the jobs' directories determine who may read a blob.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from sluice.core import SECRET_MODE, make_private_directory, sync_directory
from sluice.runtime.blob.errors import BlobCorrupt, BlobError, BlobNotFound, BlobTooLarge, UploadNotFound
from sluice.runtime.blob.names import JOB_ID, check_digest, check_file_name, check_job_id
from sluice.runtime.blob.uploads import UploadStore
from sluice.runtime.messages import BlobRef

MAX_BLOBS_PER_JOB = 256
"""Maximum number of different blobs of one job."""

_TEMPORARY_SUFFIX = ".part"
SHARED = "shared"
UPLOADS = "uploads"


class BlobWriter:
    """Writes one blob. As a context manager, it removes the temporary file unless :meth:`commit` succeeded."""

    def __init__(self, directory: Path, shared: Path, name: str, limit: int) -> None:
        self._directory = directory
        self._shared = shared
        self._name = name
        self._limit = limit
        self._size = 0
        self._hash = hashlib.sha256()
        self._temporary = directory / f"{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}"
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SECRET_MODE)
        self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    def write(self, chunk: bytes) -> None:
        """Append ``chunk``; raises :class:`BlobTooLarge` beyond the limit."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise BlobTooLarge(f"{self._name} is larger than {self._limit} bytes", "see max_blob_bytes in [jobmanager]")
        self._hash.update(chunk)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise BlobError(f"cannot store {self._name}: {error.strerror or error}") from error

    def commit(self, expected_sha256: str = "") -> BlobRef:
        """Flush to disk and make the blob visible. Raises :class:`BlobCorrupt` if it is not ``expected_sha256``."""
        digest = self._hash.hexdigest()
        if expected_sha256 and digest != expected_sha256:
            raise BlobCorrupt(f"{self._name} has SHA-256 {digest}, expected {expected_sha256}")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._appear(digest)
            sync_directory(self._directory)
        except OSError as error:
            raise BlobError(f"cannot store {self._name}: {error.strerror or error}") from error
        return BlobRef(sha256=digest, name=self._name, size=self._size)

    def _appear(self, digest: str) -> None:
        """Make the blob visible under its digest: as a hard link to a shared blob, or as a file that jobs can share."""
        target, shared = self._directory / digest, self._shared / digest
        if not (_holds(shared, digest, self._size) and _linked(target, shared)):
            self._temporary.replace(target)
            shared.unlink(missing_ok=True)
            with contextlib.suppress(FileExistsError, FileNotFoundError):  # another job did, or all have ended
                shared.hardlink_to(target)


def _linked(target: Path, shared: Path) -> bool:
    """Hard-link ``shared`` as ``target``; False if the last job with this blob has just ended."""
    try:
        target.hardlink_to(shared)
    except FileExistsError:
        return True
    except FileNotFoundError:
        return False
    return True


def _holds(path: Path, digest: str, size: int) -> bool:
    """Whether the file exists and is undamaged, so that damage does not spread to other jobs."""
    try:
        with path.open("rb") as file:
            return path.stat().st_size == size and hashlib.file_digest(file, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False


class BlobStore:
    """All blobs of all jobs below ``root``. ``max_blob_bytes`` limits each blob and the total of each job."""

    def __init__(self, root: Path, max_blob_bytes: int) -> None:
        self._root = make_private_directory(root)
        # Never removed: another thread may be about to write into it, or read it. JobManagers of the release before
        # this rule, which may have the same home during an upgrade, remove it when it is empty.
        self._shared = make_private_directory(root / SHARED)
        self.max_blob_bytes = max_blob_bytes
        self.uploads = UploadStore(root / UPLOADS, max_blob_bytes)
        self._forget_unshared()

    def jobs(self) -> frozenset[str]:
        """Ids of the jobs that have blobs."""
        return frozenset(path.name for path in self._root.iterdir() if JOB_ID.fullmatch(path.name))

    def writer(self, job_id: str, name: str) -> BlobWriter:
        """A writer for a new blob of ``job_id``; ``name`` is the file name in its reference."""
        check_file_name(name)
        directory, room = self._room(job_id)
        return BlobWriter(directory, self._shared, name, room)

    def adopt(self, job_id: str, upload_id: str, owner: str) -> BlobRef:
        """Make a complete upload of ``owner`` a blob of ``job_id`` with a hard link. The upload stays.


        Raises:
            UploadNotFound: the upload does not exist, or belongs to another user.
            UploadConflict: the upload is not complete.
            BlobTooLarge: the job would have more content than allowed.
        """
        ref, content = self.uploads.content(upload_id, owner)
        directory, room = self._room(job_id)
        if ref.size > room:
            raise BlobTooLarge(f"{ref.name} is larger than {room} bytes", "see max_blob_bytes in [jobmanager]")
        try:
            (directory / ref.sha256).hardlink_to(content)
        except FileExistsError:
            pass
        except FileNotFoundError as error:  # another thread has removed the upload, or the job
            raise UploadNotFound(f"upload {upload_id} no longer exists", "start a new one") from error
        except OSError as error:
            raise BlobError(f"cannot store {ref.name}: {error.strerror or error}") from error
        sync_directory(directory)
        return ref

    def _room(self, job_id: str) -> tuple[Path, int]:
        """The directory of a job's blobs, and how many more bytes the job may store."""
        directory = make_private_directory(self._root / check_job_id(job_id))
        present = [path.stat().st_size for path in directory.iterdir() if path.suffix != _TEMPORARY_SUFFIX]
        if len(present) >= MAX_BLOBS_PER_JOB:
            raise BlobTooLarge(f"job {job_id} has {len(present)} blobs already", f"at most {MAX_BLOBS_PER_JOB}")
        with contextlib.suppress(FileExistsError):
            self._shared.mkdir(mode=0o700)
        return directory, self.max_blob_bytes - sum(present)

    def path(self, job_id: str, sha256: str) -> Path:
        """The path of a complete blob; raises :class:`BlobNotFound`."""
        path = self._root / check_job_id(job_id) / check_digest(sha256)
        if not path.is_file():
            raise BlobNotFound(f"job {job_id} has no blob {sha256}")
        return path

    def remove_job(self, job_id: str) -> None:
        """Remove all blobs of ``job_id``. Idempotent."""
        shutil.rmtree(self._root / check_job_id(job_id), ignore_errors=True)
        self._forget_unshared()

    def _forget_unshared(self) -> None:
        """Remove shared blobs that no job uses any longer. Other threads may do the same at the same time."""
        with contextlib.suppress(FileNotFoundError):
            for path in list(self._shared.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_nlink == 1:
                        path.unlink()
