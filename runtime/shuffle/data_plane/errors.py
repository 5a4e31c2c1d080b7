"""Errors of the data plane: of its frames, of the workers' storage and of the client."""

from __future__ import annotations

import enum
from typing import Self

from sluice.core import SluiceError


class ErrorCode(enum.IntEnum):
    """The reason in an ERROR frame."""

    UNKNOWN = 1
    """The worker does not know the shuffle or the map, or the map is not committed."""
    CORRUPT = 2
    """The stored data is damaged."""
    DISK = 3
    """No disk can write or read the data."""
    QUOTA = 4
    """The job exceeds its quota on this worker."""
    DRAINING = 5
    """The worker is draining and accepts nothing new. The client should choose another one."""
    PROTOCOL = 6
    """The peer violates the protocol. The worker closes the connection."""
    NOT_ALLOWED = 7
    """The worker does not, or no longer, serve the peer's job. It closes the connection."""
    SUPERSEDED = 8
    """Another attempt of this map counts, and this one never will."""
    ABORTED = 9
    """The producer gave up the shuffle."""
    SILENT = 10
    """The producer of the shuffle has been silent for too long."""


BY_CODE: dict[int, type[ShuffleError]] = {}
"""Maps the code of an ERROR frame to its error class."""


class ShuffleError(SluiceError):
    """Base class of the data plane's errors. :attr:`code` is the code of the ERROR frame that reports the error."""

    code = ErrorCode.PROTOCOL

    def __init_subclass__(cls, code: ErrorCode | None = None) -> None:
        if code is not None:
            cls.code = code
            BY_CODE[code] = cls

    def __init__(self, what: str, remedy: str = "", *, partition: int = 0, map_id: int = 0) -> None:
        super().__init__(what, remedy)
        self.partition = partition
        self.map_id = map_id

    def fresh_copy(self) -> Self:
        """Return a copy of this error, with this error as its cause.

        Use it for an error that is raised more than once, perhaps by several threads: each raise adds to the traceback
        of an exception, and each handler may modify it.
        """
        fresh = type(self).__new__(type(self), *self.args)
        fresh.__dict__.update(self.__dict__)
        fresh.__cause__ = self
        return fresh


class FrameRefused(ShuffleError, code=ErrorCode.PROTOCOL):
    """A frame is malformed, too large, unexpected, or beyond what was agreed."""


class MapUnknown(ShuffleError, code=ErrorCode.UNKNOWN):
    """A shuffle or map is unknown, incomplete or not committed."""


class SegmentCorrupt(ShuffleError, code=ErrorCode.CORRUPT):
    """A segment differs from what was written in its place."""


class DiskFailed(ShuffleError, code=ErrorCode.DISK):
    """No disk can write or read the data."""


class QuotaExceeded(ShuffleError, code=ErrorCode.QUOTA):
    """The job exceeds its quota on this worker, or the worker has no room left for it."""


class Draining(ShuffleError, code=ErrorCode.DRAINING):
    """The worker is draining and accepts nothing new."""


class JobNotAllowed(ShuffleError, code=ErrorCode.NOT_ALLOWED):
    """The worker does not serve the peer's job."""


class AttemptSuperseded(ShuffleError, code=ErrorCode.SUPERSEDED):
    """Another attempt of the map counts, or the shuffle is complete without this attempt."""


class ProducerAborted(ShuffleError, code=ErrorCode.ABORTED):
    """The producer gave up the shuffle: what was read of it is incomplete, and no more data follows."""


class ProducerSilent(ShuffleError, code=ErrorCode.SILENT):
    """Nobody has written to the shuffle for too long."""


class ShuffleUnavailable(ShuffleError):
    """A worker cannot be reached, refused the connection, or closed it."""
