"""The state of an attempt's driver, shared by the parts of the attempt."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sluice.runtime.messages import DriverExit


class Phase(enum.Enum):
    """The phase of an attempt."""

    RECONCILING = enum.auto()
    """Waiting for a driver that an earlier leader started."""
    RESTORING = enum.auto()
    """Looking for the checkpoint to continue from."""
    PLACING = enum.auto()
    """Waiting for a slot for the driver."""
    STARTING = enum.auto()
    """The driver is being started in its slot."""
    RUNNING = enum.auto()
    """The driver's process runs."""
    SETTLING = enum.auto()
    """The process has ended; completed checkpoints are being written."""
    SAVING = enum.auto()
    """The savepoint with which the job ends is being taken."""
    COLLECTING = enum.auto()
    """Evidence of the attempt's connections is being collected."""
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
        phase: the phase of the attempt.
        registered: whether the driver has registered.
        result: the result that the driver reported; None when it reported none.
        process_end: how its process ended, as text.
        lost: whether the attempt ended only because the driver's TaskManager was lost.
        restart_useless: whether a further attempt would fail for the same reason.
        concluded_early: whether the attempt was concluded from the driver's report, before its process ended.
    """

    phase: Phase
    registered: bool = False
    result: DriverExit | None = None
    process_end: str = ""
    lost: bool = False
    restart_useless: bool = False
    concluded_early: bool = False
