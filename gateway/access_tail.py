"""Takes the proxy's access log over into the audit log: every line once, whatever is killed or rotated meanwhile.

How far it got is in the records themselves: a record and its position are one line, so neither is there without the
other. A file is known by its first line: renaming it changes nothing, and another file at the same place is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gateway.access_lines import MAX_ACCESS_LINE_BYTES, gap, missing_before, record_of
from gateway.audit_chain import AccessPosition, AuditRecord
from gateway.audit_log import MAX_BATCH_RECORDS, AuditLog
from gateway.errors import AuditLogError
from pki.home import Home

MAX_BATCH_BYTES = 1 << 20
"""Read at once; a line that is longer than this is cut into records of this size."""
MAX_ROTATED_FILES = 100
_ID_CHARACTERS = 32

_NOWHERE = AccessPosition("", 0)


def access_file(home: Home) -> Path:
    """Where the proxy writes its access log."""
    return home.gateway / "access.jsonl"


class AccessTail:
    """Follows the access log at ``path`` (and ``path.*``, where it was rotated to) into ``log``."""

    def __init__(self, path: Path, log: AuditLog) -> None:
        self._path = path
        self._log = log

    def step(self) -> int:
        """Take over at most one batch; returns how many records that were. 0: there is nothing new.

        Raises:
            AuditLogError: the access log cannot be read, or the audit log not written; nothing is lost, try again.
        """
        try:
            return self._step()
        except OSError as error:
            raise AuditLogError(f"cannot read {self._path}: {error.strerror or error}") from error

    def _step(self) -> int:
        known = self._log.position() or _NOWHERE
        files = self._files()
        if not files:
            return 0
        names = list(files)
        records: list[AuditRecord] = []
        before = known
        if known.file not in files:
            # When it is gone, nobody knows which of the others were read before it: the newest one was not.
            before = AccessPosition(names[-1] if known.file else names[0], 0)
            if known.file:
                records.append(gap("the access log that was being read is gone", known, before))
        elif files[known.file].stat().st_size < known.offset:
            before = AccessPosition(known.file, 0)
            records.append(gap("the access log was cut short", known, before))
        place = names.index(before.file)
        lines = _read(files[before.file], before.offset, finished=place + 1 < len(names))
        if not lines and not records and place + 1 < len(names):
            # This file has ended, and there is a later one: its first line takes the position there.
            before = AccessPosition(names[place + 1], 0, before.counter)
            lines = _read(files[before.file], 0, finished=place + 2 < len(names))
        for line, end in lines:
            record = record_of(line, AccessPosition(before.file, end, before.counter))
            if missing := missing_before(before, record):
                records.append(missing)
            records.append(record)
            before = record.position if isinstance(record.position, AccessPosition) else before
        records = records[:MAX_BATCH_RECORDS]
        return len(records) if records and self._log.append_all(records, after=known) else 0

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
    """What a file is known by: the digest of its first line; empty when it has none yet."""
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_ACCESS_LINE_BYTES)
    except FileNotFoundError:
        return ""
    if not first.endswith(b"\n") and len(first) < MAX_ACCESS_LINE_BYTES:
        return ""
    return hashlib.sha256(first).hexdigest()[:_ID_CHARACTERS]


def _read(path: Path, offset: int, *, finished: bool) -> list[tuple[bytes, int]]:
    """Whole lines after ``offset``, each with the byte after it; the rest of a finished file counts as a line, too."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(MAX_BATCH_BYTES)
        more = bool(file.read(1))
    lines: list[tuple[bytes, int]] = []
    start = 0
    while (newline := data.find(b"\n", start)) >= 0 and len(lines) < MAX_BATCH_RECORDS:
        lines += [(piece, offset + end) for piece, end in _pieces(data, start, newline)]
        start = newline + 1
    rest = data[start:]
    if rest and not lines and (more or finished):
        lines.append((rest, offset + len(data)))
    return lines


def _pieces(data: bytes, start: int, newline: int) -> Iterator[tuple[bytes, int]]:
    """One line; or two, when a proxy that was killed left one without its end and the next one wrote after it."""
    line = data[start:newline]
    if line.startswith(b"{") and (second := line.find(b'{"', 1)) > 0 and not _is_json(line):
        while second > 0 and not _is_json(line[second:]):
            second = line.find(b'{"', second + 1)
        if second > 0:
            yield line[:second], start + second
            yield line[second:], newline + 1
            return
    yield line, newline + 1


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True
