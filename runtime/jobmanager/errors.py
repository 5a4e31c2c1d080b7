"""Errors of the JobManager. Those that callers must distinguish keep their type over RPC."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable
from sluice.runtime.spark import ForbiddenSparkConf, PackageRefused

remotable(ForbiddenSparkConf)
remotable(PackageRefused)


class JobManagerError(SluiceError):
    """Base of the errors of package ``sluice.runtime.jobmanager``."""


class IllegalTransition(JobManagerError):
    """A job cannot go from its state to the requested one."""


@remotable
class JobNotFound(JobManagerError):
    """There is no such job, or its record has been deleted."""


@remotable
class JobAlreadyTerminal(JobManagerError):
    """The job has ended; nothing can be changed about it."""


@remotable
class SubmissionRejected(JobManagerError):
    """The submission cannot be accepted; the detail says why."""


class QueueNotFound(JobManagerError):
    """No queue with that name exists that the caller may use or see."""


@remotable
class TaskManagerLeaves(JobManagerError):
    """The TaskManager is empty and has been told to leave."""


@remotable
class QuotaExceeded(JobManagerError):
    """The files of the owner's unfinished jobs would exceed the quota."""


@remotable
class TooManyJobs(JobManagerError):
    """The limits of running and waiting jobs are reached."""


class ConnectSessionRuns(JobManagerError):
    """The caller's Spark Connect session runs already, with the settings it was started with."""


@remotable
class TaskManagerNotFound(JobManagerError):
    """There is no TaskManager with that name, or it is not connected to this JobManager."""


@remotable
class LogNotFound(JobManagerError):
    """The job has no log of that name, or the log was lost with its TaskManager."""


@remotable
class UiNotFound(JobManagerError):
    """Spark's UI has no such page, or the job's driver does not run and its event log was not kept."""


@remotable
class UiNotReady(JobManagerError):
    """The Spark UI of an ended job is not available yet; retry later."""


@remotable
class DriverUnknown(JobManagerError):
    """The JobMaster did not ask this TaskManager to launch that driver."""


@remotable
class ExecutorUnknown(JobManagerError):
    """The JobMaster did not ask this TaskManager to launch that executor."""


@remotable
class TokenRefused(JobManagerError):
    """The job does not get this token, because of the policy, the audience, or the rate limit."""


@remotable
class NotRegistered(JobManagerError):
    """The TaskManager has to register first."""
