"""What a process prints passes through here on its way to its log, so that no secret gets to the disk.

The process writes to a pipe. A thread of ours reads it, masks, and writes to the log; the process waits when it prints
faster than that. Only processes of jobs that use secrets are masked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import IO

from sluice.runtime.masking import Masker

PIECE_BYTES = 64 << 10
"""Read at once: as much as a pipe holds."""
LAST_OUTPUT_SECONDS = 10.0
"""How long it may take until the last output of a process that has ended is in its log."""

_LOG = logging.getLogger(__name__)


class MaskedOutput:
    """Pipes in front of the logs of one process; two outputs to one log share one.

    Args:
        masker: knows what must not be in a log.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._writers: dict[int, int] = {}
        self._threads: list[threading.Thread] = []

    def in_front_of(self, log: IO[bytes] | int) -> int:
        """The descriptor to which the process writes instead of ``log``; negative ones of :mod:`subprocess` stay."""
        number = log if isinstance(log, int) else log.fileno()
        if number < 0:
            return number
        if number not in self._writers:
            reader, self._writers[number] = os.pipe2(os.O_CLOEXEC)
            own = os.dup(number)
            thread = threading.Thread(target=self._copy, args=(reader, own), name="masked output", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self._writers[number]

    def started(self) -> None:
        """The process has its ends of the pipes, or will never have them."""
        while self._writers:
            os.close(self._writers.popitem()[1])

    def finish(self) -> None:
        """Wait until all that was printed is in the logs. Blocks; for when the process has ended."""
        for thread in self._threads:
            thread.join(LAST_OUTPUT_SECONDS)

    def _copy(self, reader: int, log: int) -> None:
        stream = self._masker.stream()
        lost = False
        try:
            while piece := os.read(reader, PIECE_BYTES):
                lost = lost or not _written(log, stream.feed(piece))
            if not lost:
                _written(log, stream.end())
        finally:
            os.close(reader)
            os.close(log)


def _written(log: int, data: bytes) -> bool:
    """Whether all of it is in the log; on a full disk the output is lost from here on, and the process goes on."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(log, view) :]
    except OSError as error:
        with contextlib.suppress(Exception):
            _LOG.error("the output of a job is lost: %s", error.strerror)
        return False
    return True
