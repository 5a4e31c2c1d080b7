"""Kills the writing of an audit log at one step after the other, and reports what is left.

    python audit_crash.py DIRECTORY

The log's own ``Disk`` kills the process (SIGKILL) before, in the middle of, or after its
n-th step. The process reports acknowledged records through a pipe. Prints one JSON object per crash.
Used by test_audit_crash.py.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from functools import partial
from pathlib import Path

from sluice.core.files.append_log import Disk
from sluice.gateway.audit_log.chain import AccessPosition, AuditRecord
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits
from sluice.gateway.audit_log.segments import CURRENT
from sluice.gateway.audit_log.verification import read_records, verify_log
from tests.crash_injection import WHEN, CrashingDisk, killed

LIMITS = AuditLogLimits(checkpoint_records=4, segment_bytes=2500)
RECORDS = 8


def write_and_die(path: Path, disk: Disk, first: int, leaving: int) -> None:
    """Append decisions, acts and access log lines; write each one's number to ``leaving`` once recorded."""
    log = AuditLog(path, limits=LIMITS, disk=disk)
    for number in range(first, first + RECORDS):
        if number % 4 == 3:
            log.event("token.created", "ada", {"number": number})
        elif number % 4 == 1:
            after = log.position() or AccessPosition("", 0)
            taken = AccessPosition("f", after.offset + 1)
            log.append_access_lines(b'{"path":"/%d"}\n' % number, after=after, position=taken)
        else:
            log.append(AuditRecord(event="decision", path=f"/{number}", decision="allow"))
        os.write(leaving, f"{number}\n".encode())
        if number % 3 == 0:
            log.maintain()
    log.close()


def numbers(directory: Path) -> list[int]:
    """Return the recorded numbers in order."""
    found = []
    for record in read_records(directory):
        if record.event == "act" and isinstance(record.detail, dict):
            found.append(int(record.detail["number"]))
        elif record.path:
            found.append(int(record.path[1:]))
    return found


def main(directory: Path) -> None:
    """Test every way to die at every step, each with a fresh log.

    The process that continues the log dies once more, at the same step.
    """
    for when in WHEN:
        for step in itertools.count(1):
            path = directory / f"{when}-{step}" / CURRENT
            told: list[int] = []
            died, acknowledged = killed(partial(write_and_die, path, CrashingDisk(step, when), 0))
            told += map(int, acknowledged)
            again, acknowledged = killed(partial(write_and_die, path, CrashingDisk(step, when), RECORDS))
            told += map(int, acknowledged)
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
