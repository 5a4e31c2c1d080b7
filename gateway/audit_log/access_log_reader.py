"""Reads the proxy's access log into the audit log: every line exactly once, across crashes and rotation.

What is there is read, hashed and kept in one piece (``gateway.audit_log.traffic``), so that a busy proxy has the
machine to itself. How far it got is in the records themselves: a record and its position are one line, so neither is
there without the other. A file is known by its first line: renaming it changes nothing, and another file at the same
place is noticed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sluice.core import Home
from sluice.gateway.audit_log.access_lines import MAX_ACCESS_LINE_BYTES, gap
from sluice.gateway.audit_log.chain import AccessPosition, AuditRecord
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.audit_log.secret_removal import remove_secrets
from sluice.gateway.errors import AuditLogError

MAX_BATCH_BYTES = 1 << 20
"""Read at once; a line that is longer than this is cut into pieces of this size."""
MAX_ROTATED_FILES = 100
_ID_CHARACTERS = 32

_NOWHERE = AccessPosition("", 0)


def access_file(home: Home) -> Path:
    """Where the proxy writes its access log: alone in its directory, which a proxy in another container shares."""
    return home.root / "access" / "access.jsonl"


class AccessLogReader:
    """Copies the access log at ``path``, and its rotated files ``path.*``, into ``log``.

    Attributes:
        behind: after a step, whether there was more than one step takes, or another file to go on with.
    """

    def __init__(self, path: Path, log: AuditLog) -> None:
        self._path = path
        self._log = log
        self.behind = False

    def step(self) -> int:
        """Take over at most one batch; returns how many lines or gaps that were. 0: there is nothing new.

        Raises:
            AuditLogError: the access log cannot be read, or the audit log not written; nothing is lost, try again.
        """
        try:
            return self._step()
        except OSError as error:
            raise AuditLogError(f"cannot read {self._path}: {error.strerror or error}") from error

    def _step(self) -> int:
        self.behind = False
        known = self._log.position() or _NOWHERE
        files = self._files()
        if not files:
            return 0
        names = list(files)
        if known.file not in files:
            # When it is gone, nobody knows which of the others were read before it: the newest one was not.
            before = AccessPosition(names[-1] if known.file else names[0], 0)
            if known.file:
                return self._tell(gap("the access log that was being read is gone", known, before), known)
        elif files[known.file].stat().st_size < known.offset:
            return self._tell(gap("the access log was cut short", known, AccessPosition(known.file, 0)), known)
        else:
            before = known
        place = names.index(before.file)
        data = _read(files[before.file], before.offset, finished=place + 1 < len(names))
        if not data and place + 1 < len(names):
            # This file has ended, and there is a later one: its first line takes the position there.
            before = AccessPosition(names[place + 1], 0)
            data = _read(files[before.file], 0, finished=place + 2 < len(names))
        if not data:
            return 0
        # What a busy proxy writes meanwhile is little: looking again at once for that would never end.
        self.behind = len(data) > MAX_BATCH_BYTES // 2 or before.file != names[-1]
        lines = remove_secrets(data if data.endswith(b"\n") else data + b"\n")
        end = AccessPosition(before.file, before.offset + len(data))
        return lines.count(b"\n") if self._log.take_over(lines, after=known, position=end) else 0

    def drop_read(self) -> int:
        """Delete what was rotated and is in the audit log to its end; returns how many files that were.

        Raises:
            AuditLogError: one cannot be deleted.
        """
        known = self._log.position()
        files = list(self._files().items())
        place = next((number for number, (name, _) in enumerate(files) if known and name == known.file), 0)
        try:
            for _, path in files[:place]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise AuditLogError(f"cannot delete {error.filename}: {error.strerror}") from error
        return place

    def _tell(self, record: AuditRecord, known: AccessPosition) -> int:
        self.behind = True
        return 1 if self._log.append_all((record,), after=known) else 0

    def _files(self) -> dict[str, Path]:
        """The access log's files that have a first line, oldest first, by what that line is."""
        rotated = [
            each
            for each in self._path.parent.glob(f"{self._path.name}.*")
            if not each.name.endswith((".gz", ".zst", ".xz", ".bz2"))
        ]
        rotated.sort(key=lambda each: each.stat().st_mtime_ns)
        found: dict[str, Path] = {}
        for path in [*rotated[-MAX_ROTATED_FILES:], self._path]:
            if name := _identify(path):
                found.setdefault(name, path)
        return found


def _identify(path: Path) -> str:
    """The id of a file: the digest of its first line; empty while it has none."""
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_ACCESS_LINE_BYTES)
    except FileNotFoundError:
        return ""
    if not first.endswith(b"\n") and len(first) < MAX_ACCESS_LINE_BYTES:
        return ""
    return hashlib.sha256(first).hexdigest()[:_ID_CHARACTERS]


def _read(path: Path, offset: int, *, finished: bool) -> bytes:
    """Whole lines after ``offset``. The rest of a finished file and a piece of an overlong line count as lines."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(MAX_BATCH_BYTES)
        more = bool(file.read(1))
    whole = data.rfind(b"\n") + 1
    return data if not whole and (more or finished) else data[:whole]
