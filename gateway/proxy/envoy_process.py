"""One Envoy process: start, readiness, stop. It never outlives its parent process.

Deliberately smaller than :mod:`sluice.runtime.node.child_process`, which the gateway must not import.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

from sluice.core import envoy_program
from sluice.gateway.errors import EnvoyFailed
from sluice.gateway.proxy.envoy_admin import EnvoyAdmin

READY_TIMEOUT_SECONDS = 30.0
STOP_GRACE_SECONDS = 5.0
WORKER_THREADS = 2
ACCESS_LOG_FLUSH_MILLISECONDS = 100
"""When Envoy is killed, up to this much of the access log is lost."""

_POLL_SECONDS = 0.02
_LOG_TAIL_BYTES = 4000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def arguments(bootstrap: Path) -> list[str]:
    """The command line arguments of Envoy."""
    return [
        *("--config-path", str(bootstrap)),
        *("--concurrency", str(WORKER_THREADS)),
        # Hot restart uses numbered shared memory, in which two clusters on one machine would collide.
        "--disable-hot-restart",
        *("--file-flush-interval-msec", str(ACCESS_LOG_FLUSH_MILLISECONDS)),
        *("--log-level", "warning"),
    ]


class EnvoyProcess(EnvoyAdmin):
    """A running Envoy whose admin interface is a Unix socket."""

    def __init__(self, process: asyncio.subprocess.Process, admin_socket: Path, log: Path) -> None:
        super().__init__(admin_socket, process.pid)
        self._process = process
        self._log = log

    @classmethod
    async def start(
        cls, bootstrap: Path, *, admin_socket: Path, log: Path, directory: Path | None = None
    ) -> EnvoyProcess:
        """Start Envoy in ``directory`` with the file ``bootstrap``; Envoy's own messages go to ``log``."""
        argv = [envoy_program(), *arguments(bootstrap)]
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env={},
                cwd=directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                umask=0o077,
                preexec_fn=_die_with(os.getpid()),
            )
        finally:
            os.close(descriptor)
        return cls(process, admin_socket, log)

    async def listening_port(self) -> int:
        """Wait until the listener accepts and return its port; raises :class:`EnvoyFailed`."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_SECONDS):
                while True:
                    if self._process.returncode is not None:
                        raise EnvoyFailed(f"Envoy did not start (exit code {self._process.returncode})", self.tail())
                    port = await self.serving_port()
                    if port:
                        return port
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise EnvoyFailed(f"Envoy was not ready after {READY_TIMEOUT_SECONDS:.0f} s", self.tail()) from error

    async def wait(self) -> int:
        """Wait until Envoy exits; returns its exit code, negative for a signal."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after the grace period, or at once when cancelled."""
        try:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_SECONDS):
                    await self._process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    def tail(self) -> str:
        """The last lines of Envoy's own messages."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()[-8:]
            return f"the end of {self._log}:\n  " + "\n  ".join(lines)
        return f"see {self._log}"


def _die_with(parent: int) -> Callable[[], None]:
    def before_exec() -> None:
        """Ask the kernel to send SIGKILL to this process when its parent dies (prctl(2))."""
        if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(127)  # the parent is gone already

    return before_exec
