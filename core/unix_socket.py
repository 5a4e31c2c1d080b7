"""Listening unix sockets: checks their place and mode, and replaces stale ones."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from sluice.core.errors import StoreError
from sluice.core.files import SECRET_MODE, make_private_directory

BACKLOG = 512
SHARED_SOCKET_MODE = 0o666
SHARED_DIRECTORY_MODE = 0o711


def listen_unix(path: Path, *, shared: bool = False) -> socket.socket:
    """A listening unix socket at ``path``; replaces one that a dead process left.

    Not ``shared``: mode 0600 in a directory of mode 0700. ``shared``: anybody can connect, and the peer's
    credentials decide; then the directory is only searchable, and writable by its owner alone.

    Raises:
        StoreError: another process listens there, or the directory is not safe.
    """
    if shared:
        _make_searchable_directory(path.parent)
    else:
        make_private_directory(path.parent)
    bound = bind_unix(path)
    try:
        if shared:
            path.chmod(SHARED_SOCKET_MODE)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise StoreError(f"cannot listen on {path}: {error.strerror or error}", "use a shorter path?") from error
    return bound


def bind_unix(path: Path) -> socket.socket:
    """A socket bound to ``path``, mode 0600, not listening yet; replaces one that a dead process left.

    Raises:
        StoreError: another process listens there, or the path cannot be used.
    """
    clear_stale_socket(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        bound.bind(str(path))
        # Nobody can connect before listen(), so nobody sees wider permissions.
        path.chmod(SECRET_MODE)
    except OSError as error:
        bound.close()
        raise StoreError(f"cannot listen on {path}: {error.strerror or error}", "use a shorter path?") from error
    return bound


def _make_searchable_directory(directory: Path) -> None:
    remedy = "name a directory with --socket that does not exist yet, or one of your own with mode 0711"
    try:
        if not directory.exists():
            directory.mkdir(parents=True)
            directory.chmod(SHARED_DIRECTORY_MODE)
        info = directory.stat()
    except OSError as error:
        raise StoreError(f"cannot create {directory}: {error.strerror or error}", remedy) from error
    mode = stat.S_IMODE(info.st_mode)
    if info.st_uid != os.geteuid() or mode & 0o022:
        # A user who can write it could replace the socket.
        raise StoreError(f"others can write {directory}", remedy)
    if mode & 0o011 != 0o011:
        raise StoreError(f"the policy names other users, and they cannot pass through {directory}", remedy)


def clear_stale_socket(path: Path) -> None:
    """Remove the socket that a dead process left at ``path``; raises :class:`StoreError` for anything else there."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise StoreError(f"{path} is in the way: it is not a socket", "remove it") from None
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{path} is in the way: {error.strerror or error}", "remove it") from error
        else:
            raise StoreError(f"another process listens on {path}", "see `sluice status`, stop it with `sluice down`")
