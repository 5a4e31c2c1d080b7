"""Reads the proxy's access log into the audit log: every line exactly once, across crashes and rotation.

New lines are read, hashed and stored in one batch (``gateway.audit_log.traffic``), which leaves the CPU to a busy
proxy. The read position is part of the record in the audit log, so record and position are always consistent. A file
is identified by its first line: renaming does not matter, and another file with the same name is detected.
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
"""How much is read at once. A longer line is cut into pieces of this size."""
MAX_ROTATED_FILES = 100
_ID_CHARACTERS = 32

_NOWHERE = AccessPosition("", 0)


def access_file(home: Home) -> Path:
    """The proxy's access log. It has its own directory, which a proxy in another container shares."""
    return home.root / "access" / "access.jsonl"


class AccessLogReader:
    """Copies the access log at ``path``, and its rotated files ``path.*``, into ``log``.

    Attributes:
        behind: after a step, whether more lines are waiting, in this file or in the next.
    """

    def __init__(self, path: Path, log: AuditLog) -> None:
        self._path = path
        self._log = log
        self.behind = False

    def step(self) -> int:
        """Copy at most one batch. Returns how many lines or gaps were recorded; 0 if there is nothing new.

        Raises:
            AuditLogError: the access log cannot be read, or the audit log not written. Nothing is lost; try again.
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
            # Of the other files, it is unknown which were read before the lost one. The newest one was not.
            before = AccessPosition(names[-1] if known.file else names[0], 0)
            if known.file:
                return self._append_gap(gap("the access log that was being read is gone", known, before), known)
        elif files[known.file].stat().st_size < known.offset:
            return self._append_gap(gap("the access log was cut short", known, AccessPosition(known.file, 0)), known)
        else:
            before = known
        place = names.index(before.file)
        data = _read(files[before.file], before.offset, finished=place + 1 < len(names))
        if not data and place + 1 < len(names):
            # This file is finished, and there is a later one. Continue at its first line.
            before = AccessPosition(names[place + 1], 0)
            data = _read(files[before.file], 0, finished=place + 2 < len(names))
        if not data:
            return 0
        # Few new lines do not count as behind: with a busy proxy, the caller would loop forever.
        self.behind = len(data) > MAX_BATCH_BYTES // 2 or before.file != names[-1]
        lines = remove_secrets(data if data.endswith(b"\n") else data + b"\n")
        end = AccessPosition(before.file, before.offset + len(data))
        return lines.count(b"\n") if self._log.append_access_lines(lines, after=known, position=end) else 0

    def drop_read(self) -> int:
        """Delete rotated files that are completely in the audit log. Returns how many were deleted.

        Raises:
            AuditLogError: a file cannot be deleted.
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

    def _append_gap(self, record: AuditRecord, known: AccessPosition) -> int:
        self.behind = True
        return 1 if self._log.append_all((record,), after=known) else 0

    def _files(self) -> dict[str, Path]:
        """The access log's files that have a first line, oldest first, by their id."""
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
    """The id of a file: the digest of its first line. Empty if the first line is not complete yet."""
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
