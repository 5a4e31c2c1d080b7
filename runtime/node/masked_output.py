"""Masks secrets in the output of a process before it is written to its log.

The process writes to a pipe. A thread reads the pipe, masks the output and writes it to the log; the process blocks
when it prints faster than that. Only the output of jobs that use secrets is masked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import IO

from sluice.runtime.masking import Masker

PIECE_BYTES = 64 << 10
"""Bytes per read: the capacity of a pipe."""
LAST_OUTPUT_SECONDS = 10.0
"""How long it may take to write the last output of an ended process to its log."""

_LOG = logging.getLogger(__name__)


class MaskedOutput:
    """The pipes in front of the logs of one process. Two outputs to the same log share a pipe.

    Args:
        masker: masks the secrets.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._writers: dict[int, int] = {}
        self._threads: list[threading.Thread] = []

    def pipe_to(self, log: IO[bytes] | int) -> int:
        """Return the descriptor of a pipe whose masked output goes to ``log``.

        :mod:`subprocess`'s negative constants are returned unchanged.
        """
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
        """Close our copies of the pipes' write ends: the process has its own now, or could not be started."""
        while self._writers:
            os.close(self._writers.popitem()[1])

    def finish(self) -> None:
        """Wait until all output is in the logs. Blocks. Call it after the process has ended."""
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
    """Write all data to the log. On an error, such as a full disk, return False: further output is then dropped."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(log, view) :]
    except OSError as error:
        with contextlib.suppress(Exception):
            _LOG.error("the output of a job is lost: %s", error.strerror)
        return False
    return True
