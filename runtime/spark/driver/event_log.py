"""Receives Spark's event log in the driver agent: lines over a private unix socket, compressed into a file.

The JVM (``runtime/spark/plugin/cluster/EventLog.scala``) connects once per SparkContext. It runs the job's code, which
can write anything, so each line is only masked, counted and compressed, never parsed. The file is in the directory of
the logs, to which the job has no access. It contains the events of the latest SparkContext until the end of its JVM,
even after a crash.

When the file is almost full, events of single tasks are left out, so that the jobs, stages and queries of a large job
are complete. The file :data:`CUT` next to it marks an incomplete event log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from sluice.core import SECRET_MODE, create_untrusted
from sluice.runtime.masking import Masker
from sluice.runtime.spark.errors import SparkError

SOCKET_NAME = "events"
EVENT_LOG = "driver.events.gz"
"""The name of the event log in the directory of the driver's logs."""
CUT = "driver.events.cut"
"""An empty file that marks an incomplete event log."""
MAX_LINE_BYTES = 4 << 20
"""Maximum length of an event. The JVM sends no longer ones; if it does, they are left out."""
MAX_RATIO = 40
"""Maximum compression ratio, usually 10 to 20. It bounds the time for reading an event log."""
TASKS_SHARE = 0.8
"""The fill level above which events of single tasks are left out."""
LAST_EVENTS_SECONDS = 5.0
"""Timeout for writing the last events after the JVM has ended."""
FLUSH_SECONDS = 2.0
_TASK = b'{"Event":"SparkListenerTask'
_GZIP = 31
_LEVEL = 2
_LOG = logging.getLogger(__name__)


class EventLogWriter:
    """Compresses lines into ``file``, up to about ``limit`` compressed bytes."""

    def __init__(self, file: IO[bytes], limit: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._limit = limit
        self._monotonic = monotonic
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._flushed_at = monotonic()
        self._plain = 0
        self._written = 0
        self.cut = False

    @property
    def full(self) -> bool:
        """Whether the file is full, so that further lines are dropped."""
        return self._filled(1.0)

    def _filled(self, share: float) -> bool:
        return self._written >= share * self._limit or self._plain >= share * self._limit * MAX_RATIO

    def add(self, line: bytes) -> None:
        """Add a line, including its line break, if there is room for it."""
        if self.full or (self._filled(TASKS_SHARE) and line.startswith(_TASK)):
            self.cut = True
            return
        self._plain += len(line)
        self._write(self._compressor.compress(line))
        now = self._monotonic()
        if now - self._flushed_at >= FLUSH_SECONDS:
            self._flushed_at = now
            self._write(self._compressor.flush(zlib.Z_SYNC_FLUSH))

    def close(self) -> None:
        """Finish the compressed stream and close the file."""
        with contextlib.closing(self._file):
            self._write(self._compressor.flush())

    def _write(self, data: bytes) -> None:
        if data:
            self._file.write(data)
            self._file.flush()
            self._written += len(data)


class EventLogReceiver:
    """Listens for the JVM and writes its events, in a separate thread because compression takes time.

    Args:
        path: the path of the socket, in a private directory.
        directory: the directory of the file.
        limit: maximum size of the file in bytes.
        masker: returns the masker of secrets; called when a SparkContext connects.
    """

    def __init__(self, path: Path, directory: Path, limit: int, masker: Callable[[], Masker]) -> None:
        self._path = path
        self._directory = directory
        self._limit = limit
        self._masker = masker
        self._server: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start listening.

        Raises:
            SparkError: the socket cannot be created.
        """
        server = socket.socket(socket.AF_UNIX)
        try:
            server.bind(str(self._path))
            self._path.chmod(0o600)
            server.listen(1)
        except OSError as error:
            server.close()
            raise SparkError(f"cannot receive the event log: {error.strerror or error}") from error
        self._server = server
        self._thread = threading.Thread(target=self._serve, args=(server,), name="event log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the events received so far, and stop. Blocks; call it after the JVM has ended."""
        if self._server is None or self._thread is None:
            return
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join(LAST_EVENTS_SECONDS)
        connection = self._connection
        if self._thread.is_alive() and connection is not None:  # another process inherited the other end
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self._thread.join(LAST_EVENTS_SECONDS)
        self._server.close()
        self._path.unlink(missing_ok=True)

    def _serve(self, server: socket.socket) -> None:
        """Accept one SparkContext at a time, as in Spark itself."""
        while True:
            try:
                self._connection, _ = server.accept()
            except OSError:
                return
            with self._connection as connection:
                try:
                    self._receive(connection)
                except OSError as error:
                    _LOG.error("cannot write the event log, which is now incomplete: %s", error.strerror or error)
                    self._mark_cut()

    def _receive(self, connection: socket.socket) -> None:
        for name in (EVENT_LOG, CUT):
            (self._directory / name).unlink(missing_ok=True)
        writer = EventLogWriter(create_untrusted(self._directory, EVENT_LOG, mode=SECRET_MODE), self._limit)
        with contextlib.closing(writer), connection.makefile("rb") as lines:
            self._copy(lines, writer)
        if writer.cut:
            self._mark_cut()

    def _copy(self, lines: IO[bytes], writer: EventLogWriter) -> None:
        masker, inside = self._masker(), False
        while line := lines.readline(MAX_LINE_BYTES):
            whole = line.endswith(b"\n")
            if whole and not inside:
                writer.add(masker.mask(line) if masker.needed else line)
            else:  # the end of the stream, or a part of an overlong line
                writer.cut = True
            inside = not whole
            if writer.full:
                writer.cut = True
                _LOG.warning("the event log has reached its limit of %d bytes; further events are dropped", self._limit)
                return

    def _mark_cut(self) -> None:
        with contextlib.suppress(OSError):
            os.close(os.open(self._directory / CUT, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, SECRET_MODE))
