"""Writes an audit log over and over, killed at a later step each time, and says what is left; for test_audit_crash.

    python audit_crash.py DIRECTORY

The log's own ``AuditDisk`` kills the process (SIGKILL) before, in the middle of, or after its
n-th step. What was acknowledged goes through a pipe. Prints one JSON object per crash.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path

from sluice.gateway.audit_log.chain import AccessPosition, AuditRecord
from sluice.gateway.audit_log.log import AuditDisk, AuditLog, Limits
from sluice.gateway.audit_log.segments import CURRENT
from sluice.gateway.audit_log.verification import read_records, verify_log

LIMITS = Limits(checkpoint_records=4, segment_bytes=2500)
WHEN = ("before", "torn", "after")
RECORDS = 8


class DeadlyDisk(AuditDisk):
    """Kills its process around the ``fatal``-th step."""

    def __init__(self, fatal: int, when: str) -> None:
        self._steps = itertools.count(1)
        self._fatal = fatal
        self._when = when

    def write(self, descriptor: int, data: bytes) -> int:
        """Write all, half, or nothing."""
        fatal = next(self._steps) == self._fatal
        if fatal and self._when != "before":
            super().write(descriptor, data[: len(data) // 2] if self._when == "torn" else data)
        self._die(fatal)
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Sync, or not."""
        self._die(next(self._steps) == self._fatal)
        super().sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut, or not."""
        fatal = next(self._steps) == self._fatal
        if fatal and self._when == "after":
            super().truncate(descriptor, size)
        self._die(fatal)
        super().truncate(descriptor, size)

    def rename(self, old: Path, new: Path) -> None:
        """Rename, or not."""
        fatal = next(self._steps) == self._fatal
        if fatal and self._when == "after":
            super().rename(old, new)
        self._die(fatal)
        super().rename(old, new)

    @staticmethod
    def _die(fatal: bool) -> None:
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(path: Path, disk: AuditDisk, first: int, leaving: int) -> None:
    """Append records, acts and lines of an access log; each number is told when it is on record."""
    log = AuditLog(path, limits=LIMITS, disk=disk)
    for number in range(first, first + RECORDS):
        if number % 4 == 3:
            log.event("token.created", "ada", {"number": number})
        elif number % 4 == 1:
            after = log.position() or AccessPosition("", 0)
            taken = AccessPosition("f", after.offset + 1)
            log.take_over(b'{"path":"/%d"}\n' % number, after=after, position=taken)
        else:
            log.append(AuditRecord(event="decision", path=f"/{number}", decision="allow"))
        os.write(leaving, f"{number}\n".encode())
        if number % 3 == 0:
            log.maintain()
    log.close()


def killed(path: Path, disk: AuditDisk, first: int) -> tuple[bool, list[int]]:
    """Run in a child; whether it was killed, and what it had acknowledged by then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_and_die(path, disk, first, writing)
        except BaseException:  # noqa: BLE001  the child must end here and not run the parent's code
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = [int(word) for word in pipe.read().split()]
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("the writer failed")
    return os.WIFSIGNALED(status), told


def numbers(directory: Path) -> list[int]:
    """The numbers on record, in order."""
    found = []
    for record in read_records(directory):
        if record.event == "act" and isinstance(record.detail, dict):
            found.append(int(record.detail["number"]))
        elif record.path:
            found.append(int(record.path[1:]))
    return found


def main(directory: Path) -> None:
    """One fresh log for each way to die; whoever continues dies at the same step once more."""
    for when in WHEN:
        for step in itertools.count(1):
            path = directory / f"{when}-{step}" / CURRENT
            told: list[int] = []
            died, acknowledged = killed(path, DeadlyDisk(step, when), 0)
            told += acknowledged
            again, acknowledged = killed(path, DeadlyDisk(step, when), RECORDS)
            told += acknowledged
            log = AuditLog(path, limits=LIMITS)
            log.append(AuditRecord(event="decision", path=f"/{2 * RECORDS}"))
            told.append(2 * RECORDS)
            log.close()
            proved = verify_log(path.parent)
            taken = [each.path for each in read_records(path.parent) if each.event == "traffic"]
            report = {
                "when": when,
                "step": step,
                "died": died,
                "again": again,
                "told": told,
                "found": numbers(path.parent),
                "taken": len(taken),
                "requests": proved.requests,
                "unsigned": proved.unsigned,
                "recovered": sum(each.event == "recovered" for each in read_records(path.parent)),
            }
            sys.stdout.write(json.dumps(report) + "\n")
            if not died:
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
