"""Reads the records to export from the audit log's files: only records that are signed and on disk.

Lines up to the stored checkpoint (``checkpoint.json``) survive a crash and a power failure. So a receiver never has a
record that the log lost. The reader takes no lock, so no writer waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.gateway.audit_export.cursor import Cursor
from sluice.gateway.audit_log import (
    VERIFICATION_KEY,
    AuditRecord,
    Checkpoint,
    CheckpointFile,
    LineReader,
    TrafficReader,
    VerificationKey,
    records_of,
)
from sluice.gateway.errors import AuditLogError

MAX_BATCH_MESSAGES = 500
MAX_BATCH_BYTES = 512 << 10
"""A batch is complete once it has this many bytes. A line has at most 16 KiB."""
_READ_ATTEMPTS = 3
"""Read attempts: if a segment is closed during a read, its lines are in another file at the next attempt."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: the record, and its JSON without a newline. A line of the log is sent unchanged, byte by byte."""

    record: AuditRecord
    data: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are sent together, and the position after them."""

    messages: tuple[Message, ...]
    end: Cursor


class SignedRecords:
    """The messages of the log in ``directory`` after ``cursor``, in batches.

    After an error the object cannot be used any more. Create a new one from the last position.
    """

    def __init__(self, directory: Path, cursor: Cursor, *, requests: bool) -> None:
        self._directory = directory
        self._cursor = cursor
        self._requests = requests
        self._traffic = TrafficReader(directory)
        self._messages = self._all()

    def close(self) -> None:
        """Close the files."""
        self._messages.close()  # type: ignore[attr-defined]  # it is a generator
        self._traffic.close()

    def read(self) -> Batch:
        """The next messages; none if all signed records have been read.

        Raises:
            AuditLogError: the log does not continue what was exported (it was replaced, rewritten or cut off), or is
                damaged.
            StoreError, OSError: a file cannot be read.
        """
        messages: list[Message] = []
        size = ended = 0
        for found in self._messages:
            if found is None:
                ended += 1
                if messages or ended > 1:
                    break
                continue  # the end of an earlier read
            message, self._cursor = found
            messages.append(message)
            size += len(message.data)
            if len(messages) >= MAX_BATCH_MESSAGES or size >= MAX_BATCH_BYTES:
                break
        return Batch(tuple(messages), self._cursor)

    def _all(self) -> Iterator[tuple[Message, Cursor] | None]:
        """Every message with the position after it. Yields None whenever there are no more at the moment."""
        skip = self._cursor.parts
        lines: LineReader | None = None
        while True:
            signed = signed_end(self._directory)
            if signed is None:
                if self._cursor.lines:
                    raise AuditLogError(
                        f"line {self._cursor.lines} of the audit log was exported, and now there is no checkpoint",
                        f"was {self._directory} replaced? `sluice audit-log verify`",
                    )
                yield None
                continue
            if lines is None:
                check = VerificationKey.read(self._directory / VERIFICATION_KEY).checker()
                lines = LineReader(self._directory, self._cursor.state, check)
            for _ in range(_READ_ATTEMPTS):
                before = lines.state
                for raw, record in lines.read_new(signed.sequence):
                    data = raw.removesuffix(b"\n")
                    at = Cursor(before.count, before.digest)
                    after = Cursor(lines.state.count, lines.state.digest)
                    yield from self._messages_of(record, data, at, after, skip)
                    skip, before = 0, lines.state
                if lines.state.count >= signed.sequence:
                    break
            state = lines.state
            if state.count < signed.sequence or (state.count == signed.sequence and state.digest != signed.digest):
                raise AuditLogError(
                    f"the audit log has no line {signed.sequence} as it was signed at {signed.time}",
                    "its end was removed, or it was rewritten: `sluice audit-log verify`",
                )
            if state.count > signed.sequence:
                raise AuditLogError(
                    f"line {state.count} of the audit log was exported, but it is only signed up to {signed.sequence}",
                    "its end was removed, or it was replaced: `sluice audit-log verify`",
                )
            yield None

    def _messages_of(
        self, record: AuditRecord, data: bytes, at: Cursor, after: Cursor, skip: int
    ) -> Iterator[tuple[Message, Cursor]]:
        """The messages of one line, except for the first ``skip``."""
        waiting: Message | None = None
        for number, message in enumerate(self._parts(record, data)):
            if waiting is not None:
                yield waiting, msgspec.structs.replace(at, parts=number)
            waiting = message if number >= skip else None
        if waiting is not None:
            yield waiting, after

    def _parts(self, record: AuditRecord, data: bytes) -> Iterator[Message]:
        yield Message(record, data)
        if record.event == "access" and self._requests:
            for each in records_of(self._traffic.read(record), record):
                yield Message(each, msgspec.json.encode(each))


def signed_end(directory: Path) -> Checkpoint | None:
    """The stored checkpoint, or None if there is none. Raises :class:`AuditLogError` if it is not valid."""
    kept = CheckpointFile(directory)
    if not kept.exists():
        return None
    return kept.read(VerificationKey.read(directory / VERIFICATION_KEY).checker())
