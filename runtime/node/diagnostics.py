"""What a TaskManager tells of itself to the JobManager: its metrics, and the end of its own log."""

from __future__ import annotations

from typing import Protocol

from sluice.core import render
from sluice.pki import Role
from sluice.runtime.messages import LogChunk
from sluice.runtime.node.log_tail import LogTail
from sluice.runtime.rpc import RpcEndpoint, rpc

DIAGNOSTICS = "diagnostics"
MAX_METRICS_CHARACTERS = 2 << 20


class DiagnosticsGateway(Protocol):
    """Served by each TaskManager under :data:`DIAGNOSTICS`."""

    @rpc(allow={Role.JOBMANAGER}, timeout=5.0)
    async def metrics(self) -> str:
        """In Prometheus' text format."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=10.0)
    async def read_log(self, offset: int, limit: int) -> LogChunk:
        """A piece of the log of this process."""
        ...


class Diagnostics(RpcEndpoint):
    """What a process tells a JobManager about itself.

    Args:
        process: what this process is called.
    """

    def __init__(self, process: str, log: LogTail) -> None:
        super().__init__(DIAGNOSTICS, DiagnosticsGateway)
        self._process = process
        self._log = log

    async def metrics(self) -> str:
        """In Prometheus' text format."""
        return render(self._process)[:MAX_METRICS_CHARACTERS]

    async def read_log(self, offset: int, limit: int) -> LogChunk:
        """A piece of the log of this process."""
        return self._log.read(offset, limit)
