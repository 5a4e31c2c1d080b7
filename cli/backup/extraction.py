"""Extracts the files of a backup into our own empty, private directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sluice.cli.backup.archive import ArchiveReader, Progress
from sluice.cli.backup.contents import check_path
from sluice.cli.backup.encryption import Keys, decrypted
from sluice.cli.backup.errors import BackupFailed
from sluice.cli.backup.manifest import MANIFEST, Manifest
from sluice.core import PUBLIC_MODE, SECRET_MODE, make_private_directory, sync_directory

_PUBLIC = ("cert.pem", "crl.pem")
Wanted = Callable[[str], bool]


def extract(
    backup: Path, keys: Keys, target: Path, *, wanted: Wanted, progress: Progress, sha256: str = ""
) -> Manifest:
    """Check all of ``backup``, and write the ``wanted`` files below the empty ``target``.

    The files are valid only after this has returned.

    Raises:
        BackupDamaged: it does not open, is incomplete, or has a file that a home does not have.
        BackupFailed: a file could not be written.
    """
    directories: set[Path] = set()
    with decrypted(backup, keys, sha256=sha256) as plain:
        reader = ArchiveReader(plain)
        for number, entry in enumerate(reader.entries()):
            progress(number, 0, entry.path)
            path = target / check_path(entry.path)
            if not wanted(entry.path):
                continue
            try:
                directories |= _make(path.parent, target)
                mode = PUBLIC_MODE if path.name in _PUBLIC else SECRET_MODE
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                with os.fdopen(os.open(path, flags, mode), "wb") as file:
                    for chunk in entry.chunks:
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise BackupFailed(
                    f"cannot write {entry.path}: {error.strerror or error}", "check the space on the disk"
                ) from error
    for directory in sorted(directories, reverse=True):
        sync_directory(directory)
    assert reader.manifest is not None, MANIFEST  # noqa: S101  entries() ends with it or raises
    return reader.manifest


def _make(directory: Path, top: Path) -> set[Path]:
    """All directories from ``top`` down to ``directory``."""
    make_private_directory(directory)
    return {directory, *(each for each in directory.parents if each.is_relative_to(top))}
