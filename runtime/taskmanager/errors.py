"""Errors of the TaskManager; those that callers tell apart travel as themselves."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable
from sluice.runtime.spark import ForbiddenSparkConf

remotable(ForbiddenSparkConf)


class TaskManagerError(SluiceError):
    """Base of the errors of package ``sluice.runtime.taskmanager``."""


@remotable
class SlotNotAvailable(TaskManagerError):
    """The slot is taken, or there is none of that number."""


@remotable
class AllocationUnknown(TaskManagerError):
    """No slot here has that allocation; it was freed or never given."""


@remotable
class DriverNotStarted(TaskManagerError):
    """The process of a driver could not be started."""


@remotable
class ExecutorNotStarted(TaskManagerError):
    """An executor's process could not be started."""


@remotable
class EndedUiRefused(TaskManagerError):
    """The Spark UI of a job that has ended cannot be shown here, or not now."""
