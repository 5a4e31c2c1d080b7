"""Steady requests on the channels of a running cluster, from a thread, with their results.

The RPC and blob requests come from ``taskmanager/loader``, which is a process of the cluster as far as its
certificate goes. Its identity directory is in the cluster's home and is read again whenever it changes, as
in every process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from sluice.client.access import resolve_access
from sluice.core.errors import PeerRefused
from sluice.core.home import Home
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.edge_client import edge_client_context
from sluice.runtime.blob.client import fetch_blob
from sluice.runtime.gateways import RESOURCE_MANAGER, ResourceManagerGateway
from sluice.runtime.messages import BlobRef, SlotProfile, TaskManagerRegistration
from sluice.runtime.node.addresses import read_jobmanager
from sluice.runtime.rpc import RemotePeer, RpcService

LOADER = "loader"
PAUSE_SECONDS = 0.1
REQUEST_SECONDS = 30.0
MAX_FAILURES_KEPT = 20
NO_SLOTS = TaskManagerRegistration(
    name=LOADER,
    host="127.0.0.1",
    slots=0,
    profile=SlotProfile(cores=1, memory_mb=1),
    python="3",
    version="0",
)
"""The ResourceManager reads it, and answers that nobody registers without slots: a request without consequences."""


class Load:
    """Runs from :meth:`start` to :meth:`stop`; the job whose pipeline is fetched must exist."""

    def __init__(self, home: Home, job_id: str, pipeline: Path, scratch: Path) -> None:
        self._home = home
        self._job_id = job_id
        content = pipeline.read_bytes()
        self._blob = BlobRef(sha256=hashlib.sha256(content).hexdigest(), name=pipeline.name, size=len(content))
        self._scratch = scratch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")
        self._lasting: RemotePeer | None = None
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop once the requests in progress are done."""
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        identity = TlsIdentity(self._home.identity(Role.TASKMANAGER, LOADER))
        service = RpcService(identity)
        try:
            self._lasting = await self._connect(service)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._repeat("gateway", self._gateway))
                tasks.create_task(self._repeat("rpc", lambda: self._rpc(service)))
                tasks.create_task(self._repeat("lasting rpc", self._lasting_rpc))
                tasks.create_task(self._repeat("blob", self._fetch))
        finally:
            await service.close()

    async def _repeat(self, channel: str, request: Callable[[], Awaitable[None]]) -> None:
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await request()
                self.done[channel] += 1
            except Exception as error:  # noqa: BLE001  # whatever it is, it is counted and shown
                if len(self.failures) < MAX_FAILURES_KEPT:
                    self.failures.append(f"{channel}: {type(error).__name__}: {error}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _gateway(self) -> None:
        """Make a request with a new client and a new connection.

        Like `sluice`, the client reads the authority's file.
        """
        target = resolve_access(self._home)
        connector = aiohttp.TCPConnector(ssl=edge_client_context(target.ca_file), force_close=True)
        headers = {"authorization": f"Bearer {target.token}"}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"{target.url}/v1/overview", headers=headers) as response,
        ):
            body = await response.text()
            assert response.status == 200, f"{response.status}: {body[:200]}"
            assert "taskmanagers" in json.loads(body)

    async def _rpc(self, service: RpcService) -> None:
        """Open a new connection with a handshake, and make a request over it."""
        peer = await self._connect(service)
        try:
            await _ask(peer)
        finally:
            await peer.close()

    async def _lasting_rpc(self) -> None:
        """Make a request over the connection that was opened at the start."""
        assert self._lasting is not None
        await _ask(self._lasting)

    async def _fetch(self) -> None:
        """Fetch the blob with a handshake and the identity of the job's driver; its digest is checked."""
        host, port = read_jobmanager(self._home).blob
        (directory,) = self._home.root.glob(f"work/*/jobs/{self._job_id}/driver-*/identity")
        await fetch_blob(TlsIdentity(directory), host, port, self._job_id, self._blob, self._scratch / "blob")

    async def _connect(self, service: RpcService) -> RemotePeer:
        return await service.connect(*read_jobmanager(self._home).rpc)


async def _ask(peer: RemotePeer) -> None:
    try:
        await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(NO_SLOTS)
    except PeerRefused as refusal:
        if "0 slots" not in str(refusal):
            raise
