"""The RPC service of a process: its endpoints, and the streams to and from others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import TypeVar

from sluice.core.metric_exposition import MetricsRegistry, Sample
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.connection_guard import ConnectionGuard
from sluice.pki.tls.connections import ConnectionLog
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from sluice.runtime.rpc.admission import check_caller, find_method
from sluice.runtime.rpc.call import (
    Answer,
    Caller,
    Invocation,
    RemotePeer,
    Request,
)
from sluice.runtime.rpc.dead_letters import DeadLetters
from sluice.runtime.rpc.deadlines import Deadlines
from sluice.runtime.rpc.endpoint import RpcEndpoint
from sluice.runtime.rpc.errors import (
    EndpointNotFound,
    EndpointRestarting,
    PeerUnreachable,
    RpcError,
)
from sluice.runtime.rpc.exchange import Exchange
from sluice.runtime.rpc.guardian import Guardian
from sluice.runtime.rpc.line import (
    MessageStream,
    Patience,
    Redial,
    Sessions,
)
from sluice.runtime.rpc.local import LocalLink
from sluice.runtime.rpc.peer import SessionPeer
from sluice.runtime.rpc.proxy import make_proxy
from sluice.runtime.rpc.stats import EndpointStats, samples_of
from sluice.runtime.rpc.supervision import RESUME, Strategy, Terminated
from sluice.runtime.rpc.transport import (
    ALPN,
    GrpcStream,
    accepting_protocol,
    dial,
)

MAX_PEERS = 16_384
"""Connections that a listener holds at a time; the process needs as many file descriptors."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class RpcService:
    """Starts endpoints, listens for peers, and connects to them; all over mutual TLS as ``identity``.

    Args:
        identity: who this process is to its peers.
        connections: where dialed and accepted connections are recorded.
        patience: how long to wait for peers.
        on_failure: told of errors in endpoints that no caller waits for.
        on_fatal: told of failures that no strategy could deal with: the process had better end.
        metrics: where the endpoints' figures are shown.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        *,
        connections: ConnectionLog | None = None,
        patience: Patience | None = None,
        on_failure: Callable[[RpcEndpoint, BaseException], None] | None = None,
        on_fatal: Callable[[RpcEndpoint, BaseException], None] | None = None,
        metrics: MetricsRegistry | None = None,
    ) -> None:
        self.identity = identity
        self._connections = connections
        self._patience = patience or Patience()
        self._on_failure = on_failure
        self._on_fatal = on_fatal
        self._endpoints: dict[str, RpcEndpoint] = {}
        self.guardian = Guardian(self._launch, self._terminate, self._fatal)
        self.dead_letters = DeadLetters()
        self._forget_metrics = metrics.register(self.samples) if metrics is not None else None
        self._peers: dict[Exchange, RemotePeer] = {}
        self._listeners: list[MutualTlsListener] = []
        self._guard = ConnectionGuard(identity)
        self._sessions = Sessions()
        self._deadlines = Deadlines()
        self._closed = False

    @property
    def spiffe_id(self) -> SpiffeId:
        """Who this process is."""
        return self.identity.spiffe_id

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept peers that the channel table admits; port 0 takes a free one. Returns the address bound."""
        self._check_open()
        listener = MutualTlsListener(
            self.identity,
            Channel.RPC,
            client_policy(Channel.RPC, self.spiffe_id.trust_domain),
            lambda: accepting_protocol(self._accept, self._patience.hello),
            alpn=ALPN,
            connections=self._connections,
            max_connections=MAX_PEERS,
        )
        address = await listener.start(host, port)
        self._listeners.append(listener)
        return address

    async def connect(
        self,
        host: str,
        port: int,
        *,
        role: Role = Role.JOBMANAGER,
        name: str = "",
        jobmanagers: AbstractSet[str] | None = None,
    ) -> RemotePeer:
        """Open a stream to the process in ``role`` (called ``name``, when given) at that address.

        A JobManager must be one of ``jobmanagers`` unless that is None.

        Raises:
            PeerRefused: whoever listens there is someone else.
            PeerUnreachable: nobody answers, or the peer refuses this process.
        """
        self._check_open()
        policy = server_policy(Channel.RPC, self.spiffe_id.trust_domain, role=role, name=name, jobmanagers=jobmanagers)

        async def dialed() -> GrpcStream:
            # A context of its own for each attempt: what was renewed or revoked meanwhile counts.
            stream, transport = await dial(host, port, self.identity.client_context(policy, alpn=ALPN))
            self._guard.add(transport)
            if self._connections is not None:
                self._connections.record(Channel.RPC, "dialed", self.spiffe_id, transport)
            return stream

        stream = await dialed()
        peer = stream.peer

        async def redial() -> MessageStream:
            again = await dialed()
            if again.peer != peer:
                again.abort()
                raise PeerUnreachable(f"{again.peer} answers at {host}:{port}, not {peer}")
            return again

        exchange = self._adopt(stream, redial=redial)
        try:
            # In TLS 1.3 a client learns only from what comes next whether its certificate was accepted.
            await exchange.ready()
        except BaseException as error:
            exchange.line.end(PeerUnreachable(f"{stream.peer} was not ready"))
            if isinstance(error, RpcError):
                raise PeerUnreachable(
                    f"{stream.peer} at {host}:{port} did not accept the connection: {error.what}",
                    "its log says why; is this process' certificate valid and its role allowed there?",
                ) from error
            raise
        return self._peers[exchange]

    async def start(
        self,
        endpoint: RpcEndpoint,
        *,
        strategy: Strategy = RESUME,
        make: Callable[[], RpcEndpoint] | None = None,
        parent: RpcEndpoint | None = None,
    ) -> None:
        """Start ``endpoint`` under its name; returns when its ``on_start`` has ended, raises what that raised.

        Args:
            endpoint: not started before.
            strategy: what to do when it fails; by default its errors are logged, and it goes on.
            make: makes its successors, of the same name; needed to restart it.
            parent: to whom its failures are escalated, and with whom it is stopped; by default the guardian.
        """
        self._check_open()
        if endpoint.started:
            raise RpcError(f"endpoint {endpoint.name} was started before", "make a new one")
        await self.guardian.start(endpoint, make=make, strategy=strategy, parent=parent)

    async def stop(self, endpoint: RpcEndpoint | str) -> None:
        """Stop ``endpoint``: its ``on_stop`` has run when this returns (called by itself: it only begins to stop).

        An endpoint that may have been restarted meanwhile is stopped by its name.
        """
        await self.guardian.stop(endpoint)

    def local(self, protocol: Callable[..., _T], endpoint: str, *, token: bytes | None = None) -> _T:
        """A proxy of an endpoint of this process; the role that calls is that of this process."""
        return make_proxy(
            protocol,
            LocalLink(Caller(self.spiffe_id, local=True), self._deliver, self._deadlines, self.dead_letters),
            endpoint,
            token,
        )

    def peers(self) -> tuple[RemotePeer, ...]:
        """All open streams."""
        return tuple(self._peers.values())

    async def close(self) -> None:
        """Stop all endpoints, the latest first, then say goodbye to all peers and stop listening."""
        self._closed = True
        self._guard.close()
        await self.guardian.close()
        await asyncio.gather(*(exchange.close("the process shuts down") for exchange in list(self._peers)))
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        self._deadlines.close()
        if self._forget_metrics is not None:
            self._forget_metrics()

    def endpoint_failed(self, endpoint: RpcEndpoint, error: BaseException) -> None:
        """An error in ``endpoint`` that no caller waits for: tell the owner of the process, and the guardian."""
        if self._on_failure is not None:
            self._on_failure(endpoint, error)
        self.guardian.failed(endpoint, error)

    def watch(self, name: str, told: Callable[[Terminated], None]) -> Callable[[], None]:
        """Tell when ``name`` is gone for good (at once, if it is not there); returns what ends the watch."""
        return self.guardian.watch(name, told)

    def stats(self) -> tuple[EndpointStats, ...]:
        """All running endpoints."""
        return tuple(endpoint.stats for endpoint in self._endpoints.values())

    def samples(self) -> Iterator[Sample]:
        """Endpoints, peers, restarts and dead letters as metrics."""
        yield from samples_of(self.stats())
        yield Sample("sluice_rpc_peers", "gauge", "Open sessions with other processes.", len(self._peers))
        for name, count in self.guardian.restarts().items():
            yield Sample("sluice_rpc_restarts_total", "counter", "Endpoints started again.", count, {"endpoint": name})
        yield from self.dead_letters.samples()

    async def _launch(self, endpoint: RpcEndpoint) -> None:
        self._endpoints[endpoint.name] = endpoint
        try:
            await endpoint.launch(self)
        except BaseException:
            self._endpoints.pop(endpoint.name, None)
            raise

    async def _terminate(self, endpoint: RpcEndpoint) -> None:
        if self._endpoints.get(endpoint.name) is endpoint:
            del self._endpoints[endpoint.name]
            await endpoint.terminate()

    def _fatal(self, endpoint: RpcEndpoint, error: BaseException) -> None:
        if self._on_fatal is not None:
            self._on_fatal(endpoint, error)

    def _check_open(self) -> None:
        if self._closed:
            raise RpcError("the RPC service is closed")

    def _accept(self, stream: GrpcStream) -> None:
        self._adopt(stream, sessions=self._sessions)

    def _adopt(self, stream: GrpcStream, *, redial: Redial | None = None, sessions: Sessions | None = None) -> Exchange:
        exchange = Exchange(
            self.spiffe_id,
            stream.peer,
            stream,
            self._deliver,
            self._patience,
            dead_letters=self.dead_letters,
            redial=redial,
            sessions=sessions,
        )
        peer = SessionPeer(exchange)
        exchange.caller = Caller(stream.peer, peer)
        self._peers[exchange] = peer
        exchange.on_close(lambda: self._peers.pop(exchange, None))
        _log.info("rpc stream %s - %s opened", self.spiffe_id, stream.peer)
        return exchange

    def _deliver(self, caller: Caller, request: Request, answer: Answer) -> Invocation:
        # 1. Does it exist. 2. May this caller. 3. Are the arguments of the declared types. 4. Is there room.
        # The fencing token is checked when the call's turn comes (RpcEndpoint.serve).
        endpoint = self._endpoints.get(request.endpoint)
        if endpoint is None:
            if self.guardian.supervised(request.endpoint):
                raise EndpointRestarting(f"endpoint {request.endpoint!r} is being restarted", "retry later")
            raise EndpointNotFound(f"no endpoint named {request.endpoint!r} runs at {self.spiffe_id}")
        method = find_method(endpoint.gateway, request.method, endpoint.name)
        check_caller(method, caller, endpoint=endpoint.name, job_id=endpoint.job_id)
        arguments = request.arguments
        values = method.decode_arguments(arguments) if isinstance(arguments, bytes) else arguments
        invocation = Invocation(endpoint, method, values, token=request.token, caller=caller, answer=answer)
        endpoint.accept(invocation)
        return invocation
