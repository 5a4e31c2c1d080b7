"""Metrics and logs of the processes of the cluster, collected by the leading JobManager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluice.core import Home, SluiceError, fetch, merge, render
from sluice.pki import Role
from sluice.runtime.jobmanager.errors import TaskManagerNotFound
from sluice.runtime.messages import LogChunk
from sluice.runtime.node import DIAGNOSTICS, DiagnosticsGateway
from sluice.runtime.rpc import RemotePeer

TASKMANAGERS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ClusterDiagnostics:
    """Reads metrics and logs of processes in the cluster that this JobManager leads.

    Attributes:
        home: the home directory whose other processes serve their metrics on sockets.
        process: the name of this process.
        peers: all open sessions.
    """

    home: Home
    process: str
    peers: Callable[[], Iterable[RemotePeer]]

    async def metrics(self) -> str:
        """Metrics of this process, its home and all TaskManagers that answer in time."""
        sockets = await asyncio.to_thread(lambda: sorted(self.home.metric_sockets.glob("*.sock")))
        limit = asyncio.Semaphore(TASKMANAGERS_AT_ONCE)

        async def ask(gateway: DiagnosticsGateway) -> str | None:
            async with limit:
                try:
                    return await gateway.metrics()
                except SluiceError:
                    return None

        answers = await asyncio.gather(
            *(fetch(path) for path in sockets), *(ask(gateway) for gateway in self._taskmanagers().values())
        )
        own = render(self.process)
        # TaskManagers of this home come twice, over their socket and over RPC; this process may, too.
        texts = dict.fromkeys(_first_of_each([own, *(each for each in answers if each)]))
        return await asyncio.to_thread(merge, texts)

    async def taskmanager_metrics(self, name: str) -> str:
        """The metrics of one TaskManager; raises :class:`TaskManagerNotFound`."""
        return await self._taskmanager(name).metrics()

    async def taskmanager_log(self, name: str, offset: int, limit: int) -> LogChunk:
        """A piece of the log of a TaskManager's own process; raises :class:`TaskManagerNotFound`."""
        return await self._taskmanager(name).read_log(offset, limit)

    def _taskmanager(self, name: str) -> DiagnosticsGateway:
        try:
            return self._taskmanagers()[name]
        except KeyError:
            raise TaskManagerNotFound(f"there is no TaskManager {name[:64]!r}", "see the list of them") from None

    def _taskmanagers(self) -> dict[str, DiagnosticsGateway]:
        return {
            peer.identity.name: peer.gateway(DiagnosticsGateway, DIAGNOSTICS)
            for peer in self.peers()
            if peer.identity.role is Role.TASKMANAGER and not peer.closed
        }


def _first_of_each(texts: Iterable[str]) -> Iterable[str]:
    """One exposition of each process: the first."""
    seen: set[str] = set()
    for text in texts:
        _, _, after = text.partition('process="')
        process = after.partition('"')[0]
        if process not in seen:
            seen.add(process)
            yield text
