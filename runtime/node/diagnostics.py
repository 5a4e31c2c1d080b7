"""The RPC endpoint by which a JobManager reads a TaskManager's metrics and the tail of its log."""

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
    """The interface of the endpoint. Each TaskManager serves it under the name :data:`DIAGNOSTICS`."""

    @rpc(allow={Role.JOBMANAGER}, timeout=5.0)
    async def metrics(self) -> str:
        """The metrics of this process in Prometheus text format."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=10.0)
    async def read_log(self, offset: int, limit: int) -> LogChunk:
        """At most ``limit`` bytes of this process's log from ``offset``."""
        ...


class Diagnostics(RpcEndpoint):
    """Serves :class:`DiagnosticsGateway`.

    Args:
        process: name of this process.
        log: the log lines that it serves.
    """

    def __init__(self, process: str, log: LogTail) -> None:
        super().__init__(DIAGNOSTICS, DiagnosticsGateway)
        self._process = process
        self._log = log

    async def metrics(self) -> str:
        """The metrics of this process in Prometheus text format."""
        return render(self._process)[:MAX_METRICS_CHARACTERS]

    async def read_log(self, offset: int, limit: int) -> LogChunk:
        """At most ``limit`` bytes of this process's log from ``offset``."""
        return self._log.read(offset, limit)
