"""Errors of the control plane. Errors that callers distinguish are remotable: they keep their type over RPC."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class ShuffleServiceError(SluiceError):
    """Base class of the control plane's errors."""


class ShuffleMisconfigured(ShuffleServiceError):
    """The settings of section ``[shuffle]`` are inconsistent."""


class ShuffleNotEnabled(ShuffleServiceError):
    """This cluster does not use the shuffle service."""


@remotable
class NoShuffleService(ShuffleServiceError):
    """There are not enough workers, or no ShuffleManager leads. This may be temporary."""


@remotable
class ShuffleQuotaExceeded(ShuffleServiceError):
    """The job or its cluster exceeds its quota in the service."""


@remotable
class ForeignJob(ShuffleServiceError):
    """The job belongs to another cluster."""


@remotable
class JobUnknown(ShuffleServiceError):
    """The service does not know the job: it was released, or its lease expired and its data was removed."""


@remotable
class WorkerUnknown(ShuffleServiceError):
    """No worker is registered over this connection, or under this name."""


@remotable
class NotConnected(ShuffleServiceError):
    """The JobManager must call ``connect_cluster`` first."""
