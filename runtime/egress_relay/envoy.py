"""The relay's Envoy as a child process: it has no admin listener and is restarted when it exits."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from sluice.core import SECRET_MODE, envoy_program, make_private_directory, write_secret
from sluice.runtime.egress_relay.documents import bootstrap
from sluice.runtime.node import ChildProcess

_LOG = logging.getLogger(__name__)

WORKER_THREADS = 2
STOP_GRACE_SECONDS = 2.0
RESTART_SECONDS = 1.0
MAX_LOG_BYTES = 8 << 20
"""A longer log is truncated before Envoy is started again."""


class RelayEnvoy:
    """The Envoy process; it dies with this one.


    Args:
        directory: holds its bootstrap file and its log.
        xds_socket: the Unix socket that serves its configuration.
        restarted: called before each start.
    """

    def __init__(self, directory: Path, xds_socket: Path, restarted: Callable[[], None]) -> None:
        self._directory = directory
        self._xds_socket = xds_socket
        self._restarted = restarted
        self.log = directory / "relay.log"
        self.pid = 0

    async def keep_running(self) -> NoReturn:
        """Run it until cancelled."""
        make_private_directory(self._directory)
        path = self._directory / "bootstrap.json"
        write_secret(path, msgspec.json.encode(bootstrap(str(self._xds_socket))))
        argv = [
            envoy_program(),
            *("--config-path", str(path)),
            *("--concurrency", str(WORKER_THREADS)),
            "--disable-hot-restart",
            *("--log-level", "warning"),
        ]
        while True:
            self._restarted()
            try:
                process = await self._start(argv)
            except OSError as error:  # no memory, process or descriptor is free now; nobody else would start it later
                _LOG.error("the egress relay cannot be started, and is started again soon: %s", error)
                await asyncio.sleep(RESTART_SECONDS)
                continue
            self.pid = process.pid
            try:
                ended = await process.wait()
            finally:
                self.pid = 0
                await process.stop(STOP_GRACE_SECONDS)
            _LOG.error("the egress relay exited (%s) and is restarted; see %s", ended, self.log)
            await asyncio.sleep(RESTART_SECONDS)

    async def _start(self, argv: list[str]) -> ChildProcess:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, SECRET_MODE)
        try:
            if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
                os.ftruncate(descriptor, 0)
            return await ChildProcess.start(argv, env={}, cwd=self._directory, stdout=descriptor, stderr=descriptor)
        finally:
            os.close(descriptor)
