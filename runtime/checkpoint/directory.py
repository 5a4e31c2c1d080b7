"""The directory of all jobs' checkpoints, as Spark writes them: ``<root>/<job-id>/<query name>/{metadata,commits,…}``.

Spark accesses it with Hadoop's file systems, this module with fsspec. Both use the same URL. All methods block.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import fsspec  # type: ignore[import-untyped]  # has no types

from sluice.core import (
    UnsafeFile,
    list_untrusted,
    make_private_directory,
    open_untrusted,
    remove_untrusted,
    walk_untrusted,
)
from sluice.runtime.checkpoint.errors import CheckpointsUnavailable, StreamingMisconfigured

COPY_BYTES = 1 << 20
_BATCH = re.compile(r"[0-9]{1,18}")
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_FSSPEC_NAMES = {"s3a": "s3", "s3n": "s3"}
"""fsspec's scheme for each of Hadoop's schemes that differ."""


class Folder:
    """A directory at a path or URL, with the operations that checkpoints and savepoints need.


    Raises:
        StreamingMisconfigured: fsspec does not support the URL, its package is missing, or the URL has a password.
    """

    def __init__(self, where: str) -> None:
        parts = urlsplit(where)
        if parts.password is not None:
            raise StreamingMisconfigured(
                "a URL in [streaming] contains a password", "move it to the store's configuration"
            )
        self.url = where.rstrip("/") if parts.scheme else f"file://{Path(where).absolute()}"  # Hadoop's form
        scheme = urlsplit(self.url).scheme
        name = _FSSPEC_NAMES.get(scheme, scheme) + self.url.removeprefix(scheme)
        try:
            self.files, self.root = fsspec.core.url_to_fs(name)
        except (ValueError, ImportError) as error:
            raise StreamingMisconfigured(f"[streaming]: {error}", "install the package that fsspec names") from error
        # Jobs write to a local directory too: see sluice.core.files.untrusted_files.
        self._local = make_private_directory(Path(self.root)) if scheme == "file" else None

    def path(self, *names: str) -> str:
        """The path of an entry, for ``files``."""
        return "/".join((self.root, *names))

    def names(self, *folder: str) -> list[str]:
        """The names directly in ``folder``; empty if it does not exist."""
        with self.available():
            if self._local is not None:
                try:
                    return list_untrusted(self._local, *_parts(folder))
                except UnsafeFile:
                    return []  # not a directory
            self.files.invalidate_cache()
            try:
                found = self.files.ls(self.path(*folder), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(str(each).rstrip("/").rsplit("/", 1)[-1] for each in found)

    def everything(self, *folder: str) -> list[str]:
        """All files below ``folder``, recursively, relative to it."""
        root = self.path(*folder)
        with self.available():
            if self._local is not None:
                return walk_untrusted(self._local, *_parts(folder))
            self.files.invalidate_cache()
            found = self.files.find(root)
        return sorted(str(each)[len(root) :].lstrip("/") for each in found)

    def remove(self, *names: str) -> None:
        """Remove a file, or a folder recursively. A missing one is no error."""
        if self._local is not None:
            remove_untrusted(self._local, *_parts(names))
            return
        with self.available(), contextlib.suppress(FileNotFoundError):
            self.files.rm(self.path(*names), recursive=True)

    def read(self, *names: str, limit: int) -> bytes:
        """Read at most ``limit`` bytes of a file; raises ``FileNotFoundError``."""
        with self.available(), self._reading(names) as file:
            return file.read(limit)

    def _reading(self, names: Sequence[str]) -> IO[bytes]:
        if self._local is not None:
            return open_untrusted(self._local, *_parts(names))
        opened: IO[bytes] = self.files.open(self.path(*names), "rb")
        return opened

    def write(self, data: bytes, *names: str) -> None:
        """Write a file."""
        with self.available():
            self.files.makedirs(self.path(*names[:-1]), exist_ok=True)
            self.files.pipe_file(self.path(*names), data)

    def copy_to(self, target: Folder, destination: str, *names: str, limit: float = math.inf) -> int:
        """Copy the file ``names`` to a path in ``target``; return the copied bytes. Stops once they exceed ``limit``.


        Raises ``FileNotFoundError``.
        """
        size = 0
        with self.available():
            target.files.makedirs(destination.rsplit("/", 1)[0], exist_ok=True)
            with self._reading(names) as reader, target.files.open(destination, "wb") as writer:
                while size <= limit and (chunk := reader.read(COPY_BYTES)):
                    writer.write(chunk)
                    size += len(chunk)
        return size

    @contextlib.contextmanager
    def available(self) -> Iterator[None]:
        """Turn every error of the store except ``FileNotFoundError`` into :class:`CheckpointsUnavailable`."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # each store has its own error types
            raise CheckpointsUnavailable(f"{self.url} cannot be used: {error}", "see [streaming]") from error


def _parts(names: Sequence[str]) -> list[str]:
    """Split names with several parts, such as ``query/commits/7``."""
    return [part for name in names for part in name.split("/")]


class CheckpointDirectory:
    """The checkpoints of all jobs in one directory. All methods block."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def location(self, job_id: str) -> str:
        """The URL for Spark, below which the job's queries keep their checkpoints."""
        return f"{self.folder.url}/{_checked(job_id)}"

    def committed(self, job_id: str, wanted: Collection[str]) -> dict[str, int]:
        """The last committed batch of each of the ``wanted`` queries of a job.

        They may be more than the ledger keeps: earlier releases stored all queries.
        """
        found: dict[str, int] = {}
        for name in [each for each in self.folder.names(_checked(job_id)) if each in wanted]:
            batches = [int(each) for each in self.folder.names(job_id, name, "commits") if _BATCH.fullmatch(each)]
            if batches:
                found[name] = max(batches)
        return found

    def jobs(self) -> list[str]:
        """Ids of jobs that have a checkpoint."""
        return [name for name in self.folder.names() if _JOB_ID.fullmatch(name)]

    def remove(self, job_id: str) -> None:
        """Remove the checkpoint of a job, so that it cannot resume."""
        self.folder.remove(_checked(job_id))


def _checked(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise CheckpointsUnavailable(f"{job_id[:80]!r} is not a job id")
    return job_id
