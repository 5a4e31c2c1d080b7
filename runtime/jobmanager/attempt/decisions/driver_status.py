"""The state of an attempt's driver, and what is known of its end; shared by the parts of the attempt."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sluice.runtime.messages import DriverExit


class Phase(enum.Enum):
    """The phase of an attempt, by its driver and its records."""

    RECONCILING = enum.auto()
    """A driver that runs since an earlier leader is waited for."""
    RESTORING = enum.auto()
    """The checkpoint that it goes on from is looked for."""
    PLACING = enum.auto()
    """A slot for the driver is waited for."""
    STARTING = enum.auto()
    """The driver is being started in its slot."""
    RUNNING = enum.auto()
    """The driver's process runs."""
    SETTLING = enum.auto()
    """The process has ended; completed checkpoints are being written."""
    SAVING = enum.auto()
    """The savepoint with which the job ends is being taken."""
    COLLECTING = enum.auto()
    """Evidence of its connections is being collected."""
    DECIDING = enum.auto()
    """The attempt failed, and the Dispatcher decides about the next one."""
    OVER = enum.auto()


BEFORE_DRIVER = frozenset({Phase.RESTORING, Phase.PLACING, Phase.STARTING})
WITH_DRIVER = frozenset({Phase.RECONCILING, Phase.STARTING, Phase.RUNNING})
CONCLUDING = frozenset({Phase.SETTLING, Phase.SAVING, Phase.COLLECTING})


@dataclass(slots=True)
class DriverStatus:
    """The state of the driver, which several parts of an attempt read and change.

    Attributes:
        phase: of the attempt.
        registered: whether the driver has asked for its work.
        result: what it has said about its end.
        process_end: how its process ended, in words.
        lost: its TaskManager was lost, and that alone ended the attempt.
        restart_useless: a further attempt would fail for the same reason.
        ahead: it was concluded by its word, before its process has ended.
    """

    phase: Phase
    registered: bool = False
    result: DriverExit | None = None
    process_end: str = ""
    lost: bool = False
    restart_useless: bool = False
    ahead: bool = False
