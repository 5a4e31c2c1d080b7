"""Reads the records of the security provider: one line for each mutual TLS handshake that a JVM completed.

The provider starts a new file when one is full, and keeps the previous (``runtime/spark/plugin/tls/Evidence.scala``).
The first line of a later file contains the number of connections recorded before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from sluice.core import UnsafeFile, open_untrusted
from sluice.runtime.messages import ConnectionEvidence, Evidence

EVIDENCE_FILE = "connections.jsonl"
EARLIER_FILE = "connections.1.jsonl"

MAX_EVIDENCE_LINES = 1000
"""Maximum number of lines in one file. Of both files together, the latest lines up to this number are kept."""

MAX_LINE_BYTES = 4096
"""Longer lines are left out: a job can write any, and the records of ended processes stay in memory."""

MAX_EVIDENCE_BYTES = MAX_EVIDENCE_LINES * MAX_LINE_BYTES


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    before: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


_DECODER = msgspec.json.Decoder(ConnectionEvidence)
_HEADER = msgspec.json.Decoder(_Header)


def read_evidence(reports_dir: Path) -> Evidence:
    """The latest connections that a JVM made or accepted, from its directory of reports; empty before the first.

    Skips an incomplete last line, which is still being written, and lines that are not valid records.
    """
    lines = _lines(reports_dir, EVIDENCE_FILE)
    before = _before(lines[:1])
    if before is not None:
        earlier = _connections(_lines(reports_dir, EARLIER_FILE))
        latest = _connections(lines[1:])
        found, recorded = [*earlier, *latest], max(before, len(earlier)) + len(latest)
    else:
        found = _connections(lines)
        recorded = len(found)
    kept = tuple(found[-MAX_EVIDENCE_LINES:])
    return Evidence(kept, recorded - len(kept))


def _lines(reports_dir: Path, name: str) -> list[bytes]:
    """The complete lines at the end of a file; empty if it does not exist or is not a regular file."""
    try:
        with open_untrusted(reports_dir.parent, reports_dir.name, name) as file:
            skipped = max(0, os.fstat(file.fileno()).st_size - MAX_EVIDENCE_BYTES)
            file.seek(skipped)
            data = file.read(MAX_EVIDENCE_BYTES)
    except (OSError, UnsafeFile):
        return []
    lines = data.split(b"\n")[:-1]
    return [line for line in (lines[1:] if skipped else lines) if len(line) <= MAX_LINE_BYTES]


def _before(lines: Iterable[bytes]) -> int | None:
    for line in lines:
        try:
            return _HEADER.decode(line).before
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
    return None


def _connections(lines: Iterable[bytes]) -> list[ConnectionEvidence]:
    found = []
    for line in lines:
        try:
            found.append(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # the job's own code can write to this directory
    return found
