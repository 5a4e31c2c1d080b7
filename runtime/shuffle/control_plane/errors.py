"""Errors of the shuffle service's control plane; those that callers tell apart travel as themselves."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class ShuffleServiceError(SluiceError):
    """Base of the errors of managing shuffles."""


class ShuffleMisconfigured(ShuffleServiceError):
    """The settings of section ``[shuffle]`` do not go together."""


class ShuffleNotEnabled(ShuffleServiceError):
    """This cluster does not use the shuffle service."""


@remotable
class NoShuffleService(ShuffleServiceError):
    """There are not enough workers, or no ShuffleManager leads. This may be temporary."""


@remotable
class ShuffleQuotaExceeded(ShuffleServiceError):
    """The job, or its cluster, keeps more in the service than it may."""


@remotable
class ForeignJob(ShuffleServiceError):
    """The job belongs to another cluster."""


@remotable
class JobUnknown(ShuffleServiceError):
    """The service knows no such job: it was released, or its lease is over and its data is gone."""


@remotable
class WorkerUnknown(ShuffleServiceError):
    """No such worker is registered over this connection, or by this name."""


@remotable
class NotConnected(ShuffleServiceError):
    """The JobManager has to introduce itself first."""
