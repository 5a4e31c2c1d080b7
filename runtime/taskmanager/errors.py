"""Errors of the TaskManager. Those that callers distinguish keep their type over RPC."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable
from sluice.runtime.spark import ForbiddenSparkConf

remotable(ForbiddenSparkConf)


class TaskManagerError(SluiceError):
    """Base of the errors of package ``sluice.runtime.taskmanager``."""


@remotable
class SlotNotAvailable(TaskManagerError):
    """The slot is taken or does not exist."""


@remotable
class AllocationUnknown(TaskManagerError):
    """No slot of this TaskManager has that allocation; it was freed or never existed."""


@remotable
class DriverNotStarted(TaskManagerError):
    """The process of a driver could not be started."""


@remotable
class ExecutorNotStarted(TaskManagerError):
    """An executor's process could not be started."""


@remotable
class EndedUiRefused(TaskManagerError):
    """This TaskManager cannot show the Spark UI of an ended job, or cannot show it now."""
