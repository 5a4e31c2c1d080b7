"""Errors of package ``sluice.runtime.checkpoint``."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class CheckpointError(SluiceError):
    """Base of the errors of package ``sluice.runtime.checkpoint``."""


class StreamingMisconfigured(CheckpointError):
    """The directories of checkpoints and savepoints cannot be used as they are set."""


@remotable
class CheckpointsUnavailable(CheckpointError):
    """The directory of checkpoints or savepoints does not answer."""


class CheckpointLost(CheckpointError):
    """What was committed is not there any more."""


@remotable
class NotStreaming(CheckpointError):
    """The job has no streaming query, so there is nothing to go on from."""


@remotable
class SavepointNotFound(CheckpointError):
    """There is no such savepoint."""


@remotable
class SavepointFailed(CheckpointError):
    """The savepoint could not be taken."""
