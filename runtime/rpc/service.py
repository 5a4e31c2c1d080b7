"""The RPC service of a process: its endpoints, and the streams to and from other processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Set as AbstractSet
from typing import TypeVar

from sluice.core import MetricsRegistry, Sample
from sluice.pki import Channel, Role, SpiffeId, client_policy, server_policy
from sluice.pki.tls import ConnectionGuard, ConnectionLog, MutualTlsListener, TlsIdentity
from sluice.runtime.rpc.admission import check_caller, find_method
from sluice.runtime.rpc.call import Answer, Caller, Invocation, RemotePeer, Request
from sluice.runtime.rpc.dead_letters import DeadLetters
from sluice.runtime.rpc.deadlines import Deadlines
from sluice.runtime.rpc.endpoint import RpcEndpoint
from sluice.runtime.rpc.errors import EndpointNotFound, PeerUnreachable, RpcError
from sluice.runtime.rpc.exchange import Exchange
from sluice.runtime.rpc.local import LocalLink
from sluice.runtime.rpc.proxy import make_proxy
from sluice.runtime.rpc.stats import EndpointStats, samples_of
from sluice.runtime.rpc.transport import ALPN, GrpcStream, StreamTimeouts, accepting_protocol, dial

MAX_PEERS = 16_384
"""Maximum number of connections of a listener; the process needs as many file descriptors."""

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class RpcService:
    """Starts endpoints, listens for peers, and connects to them, always with mutual TLS as ``identity``.

    Args:
        identity: the TLS identity of this process.
        connections: records dialed and accepted connections.
        timeouts: how long to wait for peers.
        on_failure: called for errors in endpoints that no caller waits for, and that may have left the endpoint's state
            inconsistent. Without it, errors are only logged, and the endpoint continues.
        metrics: the registry for the endpoints' metrics.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        *,
        connections: ConnectionLog | None = None,
        timeouts: StreamTimeouts | None = None,
        on_failure: Callable[[RpcEndpoint, BaseException], None] | None = None,
        metrics: MetricsRegistry | None = None,
    ) -> None:
        self.identity = identity
        self._connections = connections
        self._timeouts = timeouts or StreamTimeouts()
        self._on_failure = on_failure
        self._endpoints: dict[str, RpcEndpoint] = {}
        self.dead_letters = DeadLetters()
        self._forget_metrics = metrics.register(self.samples) if metrics is not None else None
        self._peers: dict[Exchange, None] = {}
        self._listeners: list[MutualTlsListener] = []
        self._guard = ConnectionGuard(identity)
        self._deadlines = Deadlines()
        self._closed = False

    @property
    def spiffe_id(self) -> SpiffeId:
        """The identity of this process."""
        return self.identity.spiffe_id

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept peers that the channel table admits; port 0 selects a free port. Returns the bound address."""
        self._check_open()
        listener = MutualTlsListener(
            self.identity,
            Channel.RPC,
            client_policy(Channel.RPC, self.spiffe_id.trust_domain),
            lambda: accepting_protocol(self._adopt, self._timeouts.hello),
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
        """Open a stream to the process with ``role`` (and ``name``, if given) at that address.

        A JobManager must be one of ``jobmanagers`` unless that is None.

        Raises:
            PeerRefused: the process at that address has another identity.
            PeerUnreachable: no process answers, or the peer refuses this process.
        """
        self._check_open()
        policy = server_policy(Channel.RPC, self.spiffe_id.trust_domain, role=role, name=name, jobmanagers=jobmanagers)
        stream, transport = await dial(host, port, self.identity.client_context(policy, alpn=ALPN))
        self._guard.add(transport)
        if self._connections is not None:
            self._connections.record(Channel.RPC, "dialed", self.spiffe_id, transport)
        exchange = self._adopt(stream)
        try:
            # In TLS 1.3, a client learns only from the first data whether the server accepted its certificate.
            await exchange.ready()
        except BaseException as error:
            exchange.connection.end(PeerUnreachable(f"{stream.peer} was not ready"))
            if isinstance(error, RpcError):
                raise PeerUnreachable(
                    f"{stream.peer} at {host}:{port} did not accept the connection: {error.what}",
                    "see the peer's log; check that this process's certificate is valid and its role allowed there",
                ) from error
            raise
        return exchange

    async def start(self, endpoint: RpcEndpoint) -> None:
        """Start ``endpoint`` under its name. An endpoint can be started only once.

        Returns when its ``on_start`` has ended, and raises the error of ``on_start``.
        """
        self._check_open()
        if endpoint.started:
            raise RpcError(f"endpoint {endpoint.name} was started before", "create a new one")
        if endpoint.name in self._endpoints:
            raise RpcError(f"an endpoint named {endpoint.name} runs already", "stop it first")
        self._endpoints[endpoint.name] = endpoint
        try:
            await endpoint.launch(self)
        except BaseException:
            self._endpoints.pop(endpoint.name, None)
            raise

    async def stop(self, endpoint: RpcEndpoint) -> None:
        """Stop ``endpoint`` and wait for its ``on_stop``. Called by the endpoint itself, it only starts to stop."""
        if self._endpoints.get(endpoint.name) is endpoint:
            del self._endpoints[endpoint.name]
            await endpoint.terminate()

    def local(self, protocol: Callable[..., _T], endpoint: str, *, token: bytes | None = None) -> _T:
        """Return a proxy of an endpoint of this process; the caller's role is that of this process."""
        return make_proxy(
            protocol,
            LocalLink(Caller(self.spiffe_id, local=True), self._deliver, self._deadlines, self.dead_letters),
            endpoint,
            token,
        )

    def peers(self) -> tuple[RemotePeer, ...]:
        """All open streams."""
        return tuple(self._peers)

    async def close(self) -> None:
        """Stop all endpoints, the latest first; then close all peers' streams and stop listening."""
        self._closed = True
        self._guard.close()
        for endpoint in reversed(list(self._endpoints.values())):
            await self.stop(endpoint)
        await asyncio.gather(*(exchange.close("the process shuts down") for exchange in list(self._peers)))
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        self._deadlines.close()
        if self._forget_metrics is not None:
            self._forget_metrics()

    def endpoint_failed(self, endpoint: RpcEndpoint, error: BaseException) -> None:
        """Report an error in ``endpoint`` that no caller waits for to the owner of the process."""
        if self._on_failure is not None:
            self._on_failure(endpoint, error)

    def stats(self) -> tuple[EndpointStats, ...]:
        """Statistics of all running endpoints."""
        return tuple(endpoint.stats for endpoint in self._endpoints.values())

    def samples(self) -> Iterator[Sample]:
        """Endpoints, peers and dead letters as metrics."""
        yield from samples_of(self.stats())
        yield Sample("sluice_rpc_peers", "gauge", "Open streams with other processes.", len(self._peers))
        yield from self.dead_letters.samples()

    def _check_open(self) -> None:
        if self._closed:
            raise RpcError("the RPC service is closed")

    def _adopt(self, stream: GrpcStream) -> Exchange:
        exchange = Exchange(
            self.spiffe_id, stream.peer, stream, self._deliver, self._timeouts, dead_letters=self.dead_letters
        )
        self._peers[exchange] = None
        exchange.on_close(lambda: self._peers.pop(exchange, None))
        _LOG.info("rpc stream %s - %s opened", self.spiffe_id, stream.peer)
        return exchange

    def _deliver(self, caller: Caller, request: Request, answer: Answer) -> Invocation:
        # Check 1. that endpoint and method exist, 2. that this caller may call, 3. the types of the arguments, and
        # 4. that the mailbox has room. The fencing token is checked when the call is run (RpcEndpoint.serve).
        endpoint = self._endpoints.get(request.endpoint)
        if endpoint is None:
            raise EndpointNotFound(f"no endpoint named {request.endpoint!r} runs at {self.spiffe_id}")
        method = find_method(endpoint.gateway, request.method, endpoint.name)
        check_caller(method, caller, endpoint=endpoint.name, job_id=endpoint.job_id)
        arguments = request.arguments
        values = method.decode_arguments(arguments) if isinstance(arguments, bytes) else arguments
        invocation = Invocation(endpoint, method, values, token=request.token, caller=caller, answer=answer)
        endpoint.accept(invocation)
        return invocation
