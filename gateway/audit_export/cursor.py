"""How far a receiver has got the audit log, kept on disk."""

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

    Every message of the first ``lines`` lines has arrived, and ``parts`` of the next line's: a line that stands for
    requests of the access log is one message, and each of them another. ``digest`` is that of the last of the
    ``lines``, so a log that was replaced or rewritten does not continue it.
    """

    lines: int = 0
    digest: str = _BEFORE.digest
    parts: int = 0

    def __post_init__(self) -> None:
        if self.lines < 0 or self.parts < 0 or len(self.digest) != len(_BEFORE.digest):
            raise ValueError("no position in an audit log")

    @property
    def state(self) -> ChainState:
        """The chain up to the last line that has arrived completely."""
        return ChainState(self.lines, self.digest)


class CursorFile:
    """The cursor at ``path``, of one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def owned(self) -> AbstractContextManager[bool]:
        """Whether it is this process's within the block; not if another one exports this log already."""
        make_private_directory(self._path.parent)
        return held_alone(self._path.with_suffix(".lock"))

    def read(self) -> Cursor:
        """The position; before everything when there is no file. Raises :class:`AuditLogError` for a damaged one."""
        if not self._path.exists():
            return Cursor()
        try:
            return msgspec.json.decode(read_secret(self._path, MAX_CURSOR_BYTES), type=Cursor)
        except msgspec.MsgspecError as error:
            raise AuditLogError(
                f"{self._path} is damaged", "remove it, and the whole audit log is sent again"
            ) from error

    def write(self, cursor: Cursor) -> None:
        """Keep ``cursor``: it is on the disk on return. Raises :class:`StoreError`."""
        write_secret(self._path, msgspec.json.encode(cursor))
