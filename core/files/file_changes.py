"""Tells whether a file has changed since it was read, for long-running processes that watch files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from sluice.core.errors import StoreError

_Value = TypeVar("_Value")


class FileStamp(NamedTuple):
    """Identifies one state of one file. Compare stamps with ``==``; a different stamp means: read the file again.

    Replacing a file changes its inode, writing in place its modification time, and ``chmod`` its status change time,
    which nobody can set back.
    """

    device: int
    inode: int
    size: int
    """In bytes."""
    modified_ns: int
    status_changed_ns: int


def file_stamp(path: Path) -> FileStamp | None:
    """The stamp of ``path`` as it is now (of the file that a link leads to); None when there is no such file.

    Take the stamp before reading the file: a change in between then shows at the next comparison.

    Raises:
        StoreError: the file cannot be examined, for example because permission is missing.
    """
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    return FileStamp(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


class CachedFile(Generic[_Value]):
    """The decoded content of one file, loaded again when the file has changed.

    A file that cannot be read or decoded raises at every call until it is good again. It does not return the last good
    value: the damaged file may revoke something.
    """

    def __init__(
        self, path: Path, load: Callable[[Path], _Value], *, missing: _Value | None = None, remedy: str = ""
    ) -> None:
        """``load`` reads and decodes ``path``. ``missing`` is the value when there is no file; without it, a missing
        file is an error that gives ``remedy``."""
        self._path = path
        self._load = load
        self._missing = missing
        self._remedy = remedy
        self._stamp: FileStamp | None = None
        self._value: _Value | None = None

    def get(self) -> _Value:
        """The value of the file as it is now.

        Raises:
            StoreError: the file cannot be read, or is missing and ``missing`` was not given.
            SluiceError: whatever ``load`` raises.
        """
        stamp = file_stamp(self._path)
        if stamp is None:
            self._value = None
            if self._missing is None:
                raise StoreError(f"{self._path} does not exist", self._remedy)
            return self._missing
        if self._value is None or stamp != self._stamp:
            self._value = None
            self._value = self._load(self._path)
            self._stamp = stamp
        return self._value
