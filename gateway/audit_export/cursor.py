"""The position of a receiver in the audit log, stored on disk."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from sluice.core import ChainState, held_alone, make_private_directory, read_secret, write_secret
from sluice.gateway.errors import AuditLogError

MAX_CURSOR_BYTES = 1 << 10
_BEFORE = ChainState()


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position between two messages.

    The receiver has all messages of the first ``lines`` lines, and ``parts`` messages of the next line. A line that
    stands for requests of the access log is one message, and each of its requests is another. ``digest`` is that of
    the last of the ``lines`` lines, so a replaced or rewritten log does not match it.
    """

    lines: int = 0
    digest: str = _BEFORE.digest
    parts: int = 0

    def __post_init__(self) -> None:
        if self.lines < 0 or self.parts < 0 or len(self.digest) != len(_BEFORE.digest):
            raise ValueError("no position in an audit log")

    @property
    def state(self) -> ChainState:
        """The state of the chain after the last line that was delivered completely."""
        return ChainState(self.lines, self.digest)


class CursorFile:
    """The cursor at ``path``. Only one process uses it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lock(self) -> AbstractContextManager[bool]:
        """Hold the lock on the cursor. Yields False if another process exports this log already."""
        make_private_directory(self._path.parent)
        return held_alone(self._path.with_suffix(".lock"))

    def read(self) -> Cursor:
        """The stored position; the start if there is no file. Raises :class:`AuditLogError` if the file is damaged."""
        if not self._path.exists():
            return Cursor()
        try:
            return msgspec.json.decode(read_secret(self._path, MAX_CURSOR_BYTES), type=Cursor)
        except msgspec.MsgspecError as error:
            raise AuditLogError(f"{self._path} is damaged", "remove it to send the whole audit log again") from error

    def write(self, cursor: Cursor) -> None:
        """Store ``cursor``; it is on disk when this returns. Raises :class:`StoreError`."""
        write_secret(self._path, msgspec.json.encode(cursor))
