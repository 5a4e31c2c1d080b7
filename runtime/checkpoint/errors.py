"""Errors of package ``sluice.runtime.checkpoint``."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class CheckpointError(SluiceError):
    """Base of the errors of package ``sluice.runtime.checkpoint``."""


class StreamingMisconfigured(CheckpointError):
    """The configured directories of checkpoints and savepoints cannot be used."""


@remotable
class CheckpointsUnavailable(CheckpointError):
    """The directory of checkpoints or savepoints is not available."""


class CheckpointLost(CheckpointError):
    """A committed checkpoint is missing."""


@remotable
class NotStreaming(CheckpointError):
    """The job has no streaming query, so it has no checkpoint."""


@remotable
class SavepointNotFound(CheckpointError):
    """There is no such savepoint."""


@remotable
class SavepointFailed(CheckpointError):
    """The savepoint could not be taken."""
