"""A file kept in memory as a decoded value, read again when it changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from sluice.core.errors import StoreError
from sluice.core.files import read_secret
from sluice.gateway.errors import GatewayError

_Value = TypeVar("_Value")

_Stamp = tuple[int, int, int, int]


class FileSnapshot(Generic[_Value]):
    """The current value of one private file.

    A file that cannot be read or decoded raises, every time, until it is whole again: the last good
    value is not used, because a damaged file may be the one that revokes something.
    """

    def __init__(
        self, path: Path, decode: Callable[[bytes], _Value], *, limit: int, missing: _Value | None = None
    ) -> None:
        """``limit`` in bytes; ``missing`` is the value when there is no file (None: that is an error)."""
        self._path = path
        self._decode = decode
        self._limit = limit
        self._missing = missing
        self._stamp: _Stamp | None = None
        self._value: _Value | None = None

    def get(self) -> _Value:
        """The value of the file as it is now; raises :class:`~sluice.core.errors.SluiceError`."""
        try:
            info = self._path.stat()
        except FileNotFoundError as error:
            if self._missing is None:
                raise GatewayError(f"{self._path} does not exist", "start the cluster with `sluice up`") from error
            self._value = None
            return self._missing
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        # The stamp is taken before reading: a change in between makes the next call read again.
        stamp = _stamp_of(info)
        if self._value is None or stamp != self._stamp:
            self._value = None
            self._value = self._decode(read_secret(self._path, self._limit))
            self._stamp = stamp
        return self._value


def _stamp_of(info: os.stat_result) -> _Stamp:
    """Replacing a file changes its inode, writing in place its times; chmod shows in ctime."""
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
