"""Errors of the remote shuffle: its frames, its storage and its client."""

from __future__ import annotations

import enum
from typing import Self

from sluice.core import SluiceError


class ErrorCode(enum.IntEnum):
    """What an ERROR frame says went wrong."""

    UNKNOWN = 1
    """The shuffle or the map is not known here, or not committed."""
    CORRUPT = 2
    """What is stored here is damaged."""
    DISK = 3
    """No disk takes or gives the data."""
    QUOTA = 4
    """The job has more data here than it may."""
    DRAINING = 5
    """The worker takes nothing new: choose another."""
    PROTOCOL = 6
    """The peer does not keep to the protocol; the worker closes the connection."""
    NOT_ALLOWED = 7
    """The peer's job is not, or no longer, served here; the worker closes the connection."""
    SUPERSEDED = 8
    """Another attempt of this map counts: this one never will."""
    ABORTED = 9
    """The producer of the shuffle gave it up."""
    SILENT = 10
    """The producer of the shuffle has given no sign of life for too long."""


BY_CODE: dict[int, type[ShuffleError]] = {}
"""The error that each code of an ERROR frame stands for."""


class ShuffleError(SluiceError):
    """Base of the errors of package ``sluice.runtime.shuffle``; those that travel have a :attr:`code`."""

    code = ErrorCode.PROTOCOL

    def __init_subclass__(cls, code: ErrorCode | None = None) -> None:
        if code is not None:
            cls.code = code
            BY_CODE[code] = cls

    def __init__(self, what: str, remedy: str = "", *, partition: int = 0, map_id: int = 0) -> None:
        super().__init__(what, remedy)
        self.partition = partition
        self.map_id = map_id

    def again(self) -> Self:
        """A new error that says the same, caused by this one.

        For what is raised more than once, perhaps by several threads: an exception collects the traceback of each, and
        whoever catches it may change it.
        """
        fresh = type(self).__new__(type(self), *self.args)
        fresh.__dict__.update(self.__dict__)
        fresh.__cause__ = self
        return fresh


class FrameRefused(ShuffleError, code=ErrorCode.PROTOCOL):
    """A frame that is malformed, too large, out of turn or against what was agreed."""


class MapUnknown(ShuffleError, code=ErrorCode.UNKNOWN):
    """A shuffle or map that is not known, not complete or not committed."""


class SegmentCorrupt(ShuffleError, code=ErrorCode.CORRUPT):
    """A segment that is not what was written in its place."""


class DiskFailed(ShuffleError, code=ErrorCode.DISK):
    """No disk takes or gives the data."""


class QuotaExceeded(ShuffleError, code=ErrorCode.QUOTA):
    """The job has more data here than it may."""


class Draining(ShuffleError, code=ErrorCode.DRAINING):
    """The worker takes nothing new."""


class JobNotAllowed(ShuffleError, code=ErrorCode.NOT_ALLOWED):
    """The peer's job is not served here."""


class AttemptSuperseded(ShuffleError, code=ErrorCode.SUPERSEDED):
    """Another attempt of the map counts, or the shuffle is complete without this one."""


class ProducerAborted(ShuffleError, code=ErrorCode.ABORTED):
    """The producer of the shuffle gave it up: what was read of it is not all, and nothing more comes."""


class ProducerSilent(ShuffleError, code=ErrorCode.SILENT):
    """Nobody has written to the shuffle for too long."""


class ShuffleUnavailable(ShuffleError):
    """A worker could not be reached, refused us, or broke off."""
