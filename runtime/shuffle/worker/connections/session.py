"""An admitted connection: its stream, its job, and the deadline of its current operation."""

from __future__ import annotations

import logging
import math
import time

from sluice.pki.tls import BulkStream, StreamBroken
from sluice.runtime.shuffle.data_plane import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    FrameRefused,
    Header,
    ShuffleError,
    pack_error,
    parse_header,
)
from sluice.runtime.shuffle.worker.storage import Job

_LOG = logging.getLogger(__name__)

WARNING_INTERVAL_SECONDS = 1.0
"""Minimum interval between log entries about a peer's refused requests."""


class Session:
    """Reads frames and writes answers. Used by one thread, except for :attr:`deadline`, which the server checks."""

    def __init__(self, stream: BulkStream, job: Job | None, frame_seconds: float) -> None:
        self.stream = stream
        self._job = job
        self.deadline = math.inf
        """Time in monotonic seconds after which the server ends the connection."""
        self._frame_seconds = frame_seconds
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._scratch = memoryview(bytearray(MAX_PAYLOAD_BYTES))
        self._last_warning = -math.inf
        self._unlogged = 0

    @property
    def job(self) -> Job:
        """The job of this connection. That of a worker that hands over is unknown before its HELLO."""
        if self._job is None:
            raise FrameRefused("the connection has no job yet")
        return self._job

    @job.setter
    def job(self, job: Job) -> None:
        self._job = job

    def is_of(self, job_id: str) -> bool:
        """Whether the connection belongs to this job."""
        return self._job is not None and self._job.job_id == job_id

    def next_header(self) -> Header | None:
        """Wait for the next frame; returns None when the peer ends the connection."""
        if not self.stream.read_exactly(self._header):
            return None
        return parse_header(self._header, from_client=True)

    def fill(self, *views: memoryview) -> None:
        """Fill ``views`` with the next bytes, within the timeout of one frame."""
        self.deadline = time.monotonic() + self._frame_seconds
        whole = all(self.stream.read_exactly(view) for view in views)
        self.deadline = math.inf
        if not whole:
            raise StreamBroken(f"the connection with {self.stream.peer} ended in the middle of a message")

    def payload(self, header: Header, buffer: memoryview | None = None) -> memoryview:
        """Read the payload of a frame into ``buffer``, or into a small buffer of the session that is reused."""
        view = (self._scratch if buffer is None else buffer)[: header.length]
        self.fill(view)
        return view

    def skip(self, size: int) -> None:
        """Read and discard ``size`` bytes."""
        while size > 0:
            part = self._scratch[: min(size, len(self._scratch))]
            self.fill(part)
            size -= len(part)

    def send(self, data: bytes | memoryview) -> None:
        """Write a whole frame, within the timeout of one frame."""
        self.deadline = time.monotonic() + self._frame_seconds
        self.stream.write_all(data)
        self.deadline = math.inf

    def refuse(self, error: ShuffleError, header: Header, what: str) -> None:
        """Answer the request ``header`` with an error. Log that ``what`` was refused, unless one was just logged."""
        now = time.monotonic()
        if now - self._last_warning >= WARNING_INTERVAL_SECONDS:
            more = f" ({self._unlogged} more refused before)" if self._unlogged else ""
            _LOG.warning("%s: %s refused: %s%s", self.stream.peer, what, error, more)
            self._last_warning, self._unlogged = now, 0
        else:
            self._unlogged += 1
        self.send_error(error, header)

    def send_error(self, error: ShuffleError, header: Header) -> None:
        """Answer the request ``header`` with an error."""
        self.job.counters.refuse()
        self.send(pack_error(error, shuffle=header.shuffle, request=header.request))
