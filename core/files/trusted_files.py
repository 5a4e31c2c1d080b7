"""Files that hold trust: written atomically, flushed to disk, and readable by their owner alone."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.core.errors import SluiceError, StoreError
from sluice.core.files.untrusted_files import remove_untrusted

SECRET_MODE = 0o600
PUBLIC_MODE = 0o644
PRIVATE_DIRECTORY_MODE = 0o700
MAX_MATERIAL_BYTES = 1 << 20
"""Largest certificate, key or keystore file that is read, in bytes."""

_PASSED_ON = {("/", "dev"), ("/", "proc")}
_SHARED_MEMORY = ("/", "dev", "shm")
"""A directory for everybody's files like ``/tmp``: its files are no inherited descriptors."""

_OF_THE_SYSTEM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def make_private_directory(path: Path) -> Path:
    """Create ``path`` (and parents) readable by the owner alone; refuse a directory or link of another user."""
    try:
        for parent in reversed(path.parents):
            if not parent.exists():
                parent.mkdir(mode=PRIVATE_DIRECTORY_MODE, exist_ok=True)
        path.mkdir(mode=PRIVATE_DIRECTORY_MODE, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror or error}", "check space and permissions") from error
    if info.st_uid != os.geteuid():
        raise StoreError(f"{path} belongs to user id {info.st_uid}", "use a directory of your own, see --home")
    # In a shared directory (sockets below /tmp), another user's link leads wherever that user likes, at any time.
    if link_owner(path) not in {os.geteuid(), 0}:
        raise StoreError(f"{path} is a link of user id {link_owner(path)}", "remove it, or use a directory of your own")
    if stat.S_IMODE(info.st_mode) & 0o077:
        path.chmod(PRIVATE_DIRECTORY_MODE)
    return path


def link_owner(path: Path) -> int:
    """The user id that ``path`` itself belongs to, whatever it leads to."""
    return path.lstat().st_uid


def write_atomic(path: Path, data: bytes, *, mode: int) -> None:
    """Replace ``path`` by ``data`` so that a reader or a crash sees the old or the new content, never a mix.

    The temporary file is created with ``mode`` (so a secret is at no moment readable by others),
    flushed to disk, renamed over ``path``, and the directory entry is flushed too.
    """
    replace_set(path.parent, {path.name: (data, mode)})


def replace_set(directory: Path, files: Mapping[str, tuple[bytes, int]], *, follow: bool = True) -> None:
    """Replace several files of ``directory`` (name -> content and mode), in the given order.

    Without ``follow``, a ``directory`` that is a symbolic link is a :class:`StoreError`: its creator could choose where
    our files go.

    All of them are staged and flushed beside their targets before the first is renamed: a full disk or
    a missing permission changes nothing. Each single file changes atomically; a reader between two
    renames sees old and new files side by side and must check that they belong together.
    """
    staged: list[tuple[str, str]] = []
    place = directory / next(iter(files)) if len(files) == 1 else directory
    with opened_directory(directory, f"cannot write {place}", follow=follow) as descriptor:
        try:
            for name, (data, mode) in files.items():
                staged.append((staged_name(name), name))
                _write_new(descriptor, staged[-1][0], data, mode)
            for temporary, name in staged:
                os.rename(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        except OSError as error:
            for temporary, _ in staged:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=descriptor)
            raise StoreError(
                f"cannot write {place}: {error.strerror or error}", "check space and permissions; nothing was changed"
            ) from error
        os.fsync(descriptor)


@contextlib.contextmanager
def opened_directory(directory: Path, what: str, *, follow: bool) -> Iterator[int]:
    """A descriptor of ``directory``; an error begins with ``what``."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(directory, flags)
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}", "check space and permissions") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_new(directory: int, name: str, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, mode, dir_fd=directory)
    try:
        os.fchmod(descriptor, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_secret(path: Path, data: bytes) -> None:
    """Write a private key or password: mode 0600, atomically."""
    write_atomic(path, data, mode=SECRET_MODE)


def write_public(path: Path, data: bytes) -> None:
    """Write a certificate or other public material: mode 0644, atomically."""
    write_atomic(path, data, mode=PUBLIC_MODE)


def check_space(directory: Path, size: int) -> None:
    """Check that ``size`` bytes can be written into ``directory``; raises :class:`StoreError`."""
    name = staged_name("space")
    with opened_directory(directory, f"cannot write {directory}", follow=True) as descriptor:
        try:
            _write_new(descriptor, name, b"\0" * size, SECRET_MODE)
        except OSError as error:
            raise StoreError(
                f"cannot write {directory}: {error.strerror or error}",
                "check space and permissions; nothing was changed",
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)


def remove_leftovers(directory: Path, name: str = "*") -> None:
    """Remove what dead writers staged for ``name`` in ``directory``; the caller holds its writers' lock."""
    for path in directory.glob(f".{name}.*.tmp"):
        remove_untrusted(directory, path.name)


def staged_name(name: str) -> str:
    """A name in the same directory as ``name``, for content that is not complete yet."""
    return f".{name}.{secrets.token_hex(6)}.tmp"


def sync_directory(path: Path) -> None:
    """Flush the directory entries of ``path`` to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def may_pass(error: SluiceError) -> bool:
    """Whether an error was the system's and not the file's, such as a lack of descriptors: another try may succeed."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _OF_THE_SYSTEM


def read_bounded(path: Path, limit: int = MAX_MATERIAL_BYTES) -> bytes:
    """Read at most ``limit`` bytes of ``path``; a larger or missing file is a :class:`StoreError`.

    So is anything but a regular file: a FIFO or a device could keep its reader waiting. A descriptor that the user has
    passed on may be a pipe (``/dev/stdin``, and ``/dev/fd/63`` of a shell's ``<(…)``).
    """
    return _read(path, limit, 0)


def read_secret(path: Path, limit: int = MAX_MATERIAL_BYTES) -> bytes:
    """Read a secret file; refuse one that group or others may read, write or execute."""
    return _read(path, limit, 0o077)


def read_deployed_secret(path: Path, limit: int = MAX_MATERIAL_BYTES) -> bytes:
    """Read a secret file that somebody else deployed: the group may read it if root owns it.

    The files of a Kubernetes secret with ``fsGroup`` are like this, and those of Debian's group ``ssl-cert``. Root
    decides who is in the group. Nobody but the owner may read a file of any other owner.
    """
    return _read(path, limit, 0o077, roots_group=stat.S_IRGRP)


def _read(path: Path, limit: int, forbidden: int, *, roots_group: int = 0) -> bytes:
    """The content of a file without any of the ``forbidden`` mode bits; a file of root may have ``roots_group``."""
    passed_on = path.parts[:2] in _PASSED_ON and path.parts[:3] != _SHARED_MEMORY
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if passed_on else os.O_NONBLOCK)
    try:
        descriptor = os.open(path, flags)
        try:
            info = os.fstat(descriptor)
            mode = info.st_mode
            if not (stat.S_ISREG(mode) or passed_on):
                raise StoreError(f"{path} is a {'directory' if stat.S_ISDIR(mode) else 'special file'}, not a file")
            if _exposing_bits(info, forbidden, roots_group):
                shown = f"{stat.S_IMODE(mode):04o}"
                raise StoreError(f"{path} has mode {shown}: others can read this secret", f"chmod 600 {path}")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > limit:
        raise StoreError(f"{path} is larger than {limit} bytes")
    return data


def _exposing_bits(info: os.stat_result, forbidden: int, roots_group: int) -> int:
    """The bits in the mode of a secret file that give it to others."""
    return info.st_mode & forbidden & ~(roots_group if info.st_uid == 0 else 0)


def exchange(one: Path, other: Path) -> None:
    """Swap two directories or files atomically, so that neither path is ever empty (renameat2(2), EXCHANGE)."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    sys.audit("pki.exchange", str(one), str(other))
    if renameat2 is None:
        raise StoreError("this system cannot exchange two directories in one step", "use Linux with glibc 2.28 or musl")
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise StoreError(
            f"cannot exchange {one} and {other}: {reason}",
            "both must be on one file system that can, as ext4 or xfs",
        )
    for parent in {one.parent, other.parent}:
        sync_directory(parent)
