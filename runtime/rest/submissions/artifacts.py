"""Fetches files that a request names by URL from the stores that the configuration allows.

A store is a directory (``file:///srv/pipelines/``) or a URL that fsspec can open (``s3://bucket/pipelines/``). A file
URL must be below a store and in canonical form: without empty or dot segments, escapes, or chained URLs.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sluice.runtime.blob import BlobStore, check_file_name
from sluice.runtime.messages import BlobRef
from sluice.runtime.rest.protocol import ArtifactRefused

CHUNK_BYTES = 1 << 20
MAX_URL_CHARACTERS = 1000

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+]*)://(?P<rest>[A-Za-z0-9._~/@=+-]*)")
_LOCAL = "file"


class ArtifactStores:
    """The configured stores. A trailing ``/`` is added to a URL without one."""

    def __init__(self, stores: Sequence[str]) -> None:
        self._stores = tuple(store if store.endswith("/") else f"{store}/" for store in stores)
        for store in self._stores:
            _check(store.rstrip("/") or store)

    async def fetch(self, url: str, store: BlobStore, job_id: str) -> BlobRef:
        """Copy the file at ``url`` into ``store`` for ``job_id``.


        Raises:
            ArtifactRefused: it is not in an allowed store, or cannot be read.
            InvalidBlobName: its name is not a plain file name.
            BlobTooLarge: the job would have more content than allowed.
        """
        allowed = self._allowed(url)
        name = check_file_name(url.rpartition("/")[2])
        return await asyncio.to_thread(_copy, url, allowed, name, store, job_id)

    def _allowed(self, url: str) -> str:
        """The store that contains ``url``; raises :class:`ArtifactRefused` if none does."""
        _check(url)
        for each in self._stores:
            if url.startswith(each):
                return each
        raise ArtifactRefused(
            f"{url[:200]!r} is not in an allowed store", "see jobmanager.artifact_stores in sluice.toml"
        )


def _check(url: str) -> None:
    match = _URL.fullmatch(url)
    segments = match["rest"].split("/") if match else []
    inner = segments[1:] if match and match["scheme"] == _LOCAL else segments  # file:// has no host
    if len(url) > MAX_URL_CHARACTERS or not inner or any(each in {"", ".", ".."} for each in inner):
        raise ArtifactRefused(f"{url[:200]!r} is not the URL of a file", "as in s3://bucket/pipelines/report.py")


def _copy(url: str, allowed: str, name: str, store: BlobStore, job_id: str) -> BlobRef:
    with _opened(url, allowed) as file, store.writer(job_id, name) as writer:
        try:
            while chunk := file.read(CHUNK_BYTES):
                writer.write(chunk)
        except OSError as error:
            raise ArtifactRefused(f"{url[:200]!r} cannot be read: {type(error).__name__}") from error
        return writer.commit()


@contextmanager
def _opened(url: str, allowed: str) -> Iterator[BinaryIO]:
    scheme, _, path = url.partition("://")
    try:
        file = _open_local(Path(path), Path(allowed.partition("://")[2])) if scheme == _LOCAL else _open_remote(url)
    except ArtifactRefused:
        raise
    # Any exception: fsspec's errors depend on the store.
    except Exception as error:
        raise ArtifactRefused(f"{url[:200]!r} cannot be opened: {type(error).__name__}") from error
    with file:
        yield file


def _open_local(path: Path, allowed: Path) -> BinaryIO:
    """Open a regular file that is below the store after all symbolic links are resolved."""
    real = path.resolve(strict=True)
    if not real.is_relative_to(allowed.resolve(strict=True)):
        raise ArtifactRefused(f"{str(path)[:200]!r} leads out of its store")
    descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactRefused(f"{str(path)[:200]!r} is not a regular file")
    return os.fdopen(descriptor, "rb")


def _open_remote(url: str) -> BinaryIO:
    import fsspec  # type: ignore[import-untyped]  # has no types

    opened: BinaryIO = fsspec.open(url, "rb").open()
    return opened
