"""One Envoy for the connections of all jobs on a TaskManager, started on first use and restarted when it exits.

This process serves its configuration over a Unix socket that only this Envoy may use: a listener on the loopback
interface, and for each attempt an Envoy cluster with the certificate of its job. Both sides keep keys only in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec

from sluice.core import SluiceError, end_tasks, listen_unix, repeat, write_secret
from sluice.core.grpc import MAX_REQUEST_BYTES, Call, Caller, GrpcServer, Method
from sluice.core.xds import AGGREGATED, CLUSTER, LISTENER, SECRET, Resources, SnapshotBoard, from_json, serve_stream
from sluice.runtime.egress_relay.attempt_secrets import AttemptSecrets
from sluice.runtime.egress_relay.documents import HOST, LISTENER_NAME, cluster, listener
from sluice.runtime.egress_relay.envoy import RelayEnvoy
from sluice.runtime.egress_relay.errors import RelayFailed
from sluice.runtime.egress_relay.preamble import CAPABILITY_BYTES, RelayRoute
from sluice.runtime.egress_relay.progress import Progress

_LOG = logging.getLogger(__name__)

READY_SECONDS = 30.0
"""How long Envoy may take to start and to accept the identity of an attempt."""
LOOK_SECONDS = 1.0
"""How often the identities and the address of the gateway's listener are checked for changes."""
_PROBE_SECONDS = 0.02


class EgressRelay:
    """The egress relay of one TaskManager.


    Args:
        directory: for its files; created with mode 0700. Its path must be short enough for a Unix socket.
        trust_domain: the trust domain of all identities.
        locate: returns the address of the gateway's listener for jobs; raises :class:`SluiceError` if it is unknown.
    """

    def __init__(self, directory: Path, trust_domain: str, locate: Callable[[], tuple[str, int]]) -> None:
        self._socket = directory / "relay.sock"
        self._endpoint = directory / "endpoint.json"
        self._trust_domain = trust_domain
        self._locate = locate
        self._gateway: tuple[str, int] | None = None
        self._attempts: dict[str, AttemptSecrets] = {}
        self._board = SnapshotBoard()
        self._progress = Progress(self._board)
        self._envoy = RelayEnvoy(directory, self._socket, self._progress.restarted)
        self._port = 0
        self._starting = asyncio.Lock()
        self._running: contextlib.AsyncExitStack | None = None

    @contextlib.asynccontextmanager
    async def attempt(self, identity: Path) -> AsyncIterator[RelayRoute]:
        """A route that uses the certificate in the directory ``identity`` within the context. It follows renewals.


        Raises:
            RelayFailed: Envoy does not start, or does not accept the identity.
            SluiceError: the identity does not exist, or the gateway's address is unknown.
        """
        name = secrets.token_hex(CAPABILITY_BYTES)
        self._attempts[name] = await asyncio.to_thread(AttemptSecrets, name, identity, self._trust_domain)
        try:
            self._gateway = self._locate()
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await self._start()
                    self._publish()
                    await self._progress.wait_accepted(frozenset(self._attempts[name].secrets))
            except TimeoutError:
                raise RelayFailed("the relay was not ready for a job in time", f"see {self._envoy.log}") from None
            yield RelayRoute(name, self._address)
        finally:
            del self._attempts[name]
            self._publish()

    async def close(self) -> None:
        """Stop Envoy, which ends every connection."""
        async with self._starting:
            if self._running is not None:
                await self._running.aclose()
                self._running = None

    def _address(self) -> tuple[str, int]:
        return HOST, self._port

    async def _start(self) -> None:
        async with self._starting:
            if self._running is not None:
                return
            async with contextlib.AsyncExitStack() as stack:
                serve = partial(serve_stream, source=self._progress)

                async def stream(call: Call) -> None:
                    await serve(call)

                server = GrpcServer({AGGREGATED: Method(stream, MAX_REQUEST_BYTES)}, self._admits)
                await server.start(listen_unix(self._socket))
                stack.callback(self._socket.unlink, missing_ok=True)
                stack.push_async_callback(server.close)
                self._choose_port()
                self._publish()
                supervising = asyncio.create_task(self._envoy.keep_running())
                stack.push_async_callback(end_tasks, supervising)
                await self._until_listening()
                # For the audit, which reports every listener that it does not know.
                write_secret(self._endpoint, msgspec.json.encode({"host": HOST, "port": self._port}))
                stack.callback(self._endpoint.unlink, missing_ok=True)
                looking = asyncio.create_task(repeat(self._look, LOOK_SECONDS, "cannot update identities in the relay"))
                stack.push_async_callback(end_tasks, looking)
                self._running = stack.pop_all()

    def _admits(self, caller: Caller) -> bool:
        """Admit only the Envoy that this process started, no other process of the same user: it serves private keys."""
        return caller.pid == self._envoy.pid

    def _choose_port(self) -> None:
        with contextlib.closing(socket.socket()) as probe:
            probe.bind((HOST, 0))
            self._port = int(probe.getsockname()[1])

    async def _until_listening(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                if await self._progress.listening():
                    _, writer = await asyncio.open_connection(HOST, self._port)
                    writer.close()
                    await writer.wait_closed()
                    return
                # Another process has taken the port meanwhile.
                self._choose_port()
                self._publish()
            await asyncio.sleep(_PROBE_SECONDS)

    def _publish(self) -> None:
        found = {name: secret for each in self._attempts.values() for name, secret in each.secrets.items()}
        clusters = {}
        if self._gateway is not None:
            for name in self._attempts:
                document = cluster(name, self._gateway, self._trust_domain)
                clusters[str(document["name"])] = from_json(CLUSTER, document)
        self._board.publish(
            {
                CLUSTER: Resources.of(clusters),
                LISTENER: Resources.of({LISTENER_NAME: from_json(LISTENER, listener(self._port))}),
                SECRET: Resources.of(found),
            }
        )

    async def _look(self) -> None:
        with contextlib.suppress(SluiceError):  # the gateway is away and may come back at the same address
            self._gateway = self._locate()
        for each in tuple(self._attempts.values()):
            try:
                await asyncio.to_thread(each.refresh)
            except SluiceError as error:
                _LOG.warning("the new identity of a job is invalid, the previous one stays in use: %s", error)
        self._publish()
