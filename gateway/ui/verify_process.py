"""Verifies a whole audit log in a separate process, so that it does not delay decisions about requests.

``python -m sluice.gateway.ui.verify_process DIRECTORY`` prints one line of JSON.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from sluice.core import SluiceError
from sluice.gateway.audit_log import verify_log

NICENESS = 10


class VerificationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification. ``problem`` describes the first error; it is empty when all lines are valid."""

    lines: int = 0
    segments: int = 0
    unsigned: int = 0
    key: str = ""
    checkpoint: str = ""
    problem: str = ""


def verification_of(directory: Path) -> VerificationResult:
    """Verify the log in ``directory``."""
    try:
        proved = verify_log(directory)
    except (SluiceError, OSError) as error:
        return VerificationResult(problem=str(error) or type(error).__name__)
    last = proved.checkpoint
    return VerificationResult(
        lines=proved.state.count,
        segments=proved.segments + 1,
        unsigned=proved.unsigned,
        key=proved.key,
        checkpoint="" if last is None else f"line {last.sequence}, {last.time}",
    )


if __name__ == "__main__":
    os.nice(NICENESS)
    sys.stdout.buffer.write(msgspec.json.encode(verification_of(Path(sys.argv[1]))) + b"\n")
