"""The mutual TLS listener behind every port of a Sluice process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence

from sluice.core import PkiError, StoreError, accept, end_tasks, printable
from sluice.pki.channels import Channel, PeerPolicy
from sluice.pki.tls.connection_guard import ConnectionGuard
from sluice.pki.tls.connections import ConnectionLog, format_address
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.pending_peers import PendingPeers

_LOG = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_SECONDS = 10.0
"""How long a peer may take for its handshake."""
MAX_CONCURRENT_HANDSHAKES = 256
"""Most concurrent handshakes of a listener; when exceeded, the oldest one of the busiest address is closed."""
MAX_OPEN_CONNECTIONS = 4096
"""Open connections per listener unless it says otherwise; more are refused."""
BACKLOG = 256
COMPLAINT_SECONDS = 1.0
"""Shortest time between two log lines about too many handshakes."""
ACCEPT_RETRY_SECONDS = 0.2
"""Pause after the system is out of file descriptors or memory."""


class MutualTlsListener:
    """Listens on one address and hands every admitted connection to a fresh protocol.

    Each connection gets its TLS context from ``identity``, so that a renewed certificate and new trust anchors apply
    from the next connection on. A connection whose peer is revoked is ended within seconds.

    Args:
        identity: of this process.
        channel: what kind of connections these are; for the log.
        policy: the clients to admit.
        protocol_factory: makes the protocol of an admitted connection, called after the handshake began and
            connected only once the peer is admitted.
        alpn: application protocols offered; when given, the client must choose one.
        alpn_required: False: or offer none, as nginx does.
        connections: where admitted connections are recorded.
        handshake_timeout: in seconds.
        max_connections: open at the same time; more are refused.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        channel: Channel,
        policy: PeerPolicy,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        alpn: Sequence[str] = (),
        alpn_required: bool = True,
        connections: ConnectionLog | None = None,
        handshake_timeout: float = HANDSHAKE_TIMEOUT_SECONDS,
        max_connections: int = MAX_OPEN_CONNECTIONS,
    ) -> None:
        self._identity = identity
        self._channel = channel
        self._policy = policy
        self._protocol_factory = protocol_factory
        self._alpn = tuple(alpn)
        self._alpn_required = alpn_required
        self._connections = connections
        self._handshake_timeout = handshake_timeout
        self._max_connections = max_connections
        self._pending: PendingPeers[asyncio.Task[None]] = PendingPeers(MAX_CONCURRENT_HANDSHAKES)
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._complained = -math.inf
        self._guard = ConnectionGuard(identity)
        self.refused = 0
        """Connections refused so far."""

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on ``host`` (port 0: any free port); returns the address bound."""
        if self._socket is not None:
            raise StoreError("the listener was started already")
        loop = asyncio.get_running_loop()
        family, kind, protocol, _, address = (
            await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise StoreError(
                f"cannot listen on {host}:{port} for {self._channel}: {error.strerror or error}",
                "is another process using the port?",
            ) from error
        self._socket = listening
        bound_host, bound_port = listening.getsockname()[:2]
        self._accepting = asyncio.create_task(self._accept_loop(listening), name=f"accept-{self._channel}")
        return bound_host, bound_port

    async def stop_accepting(self) -> None:
        """Accept no new connections and abort handshakes; open connections go on."""
        if self._accepting is not None:
            await end_tasks(self._accepting)
        await end_tasks(*self._handshakes)  # each has begun meanwhile, and closes its connection
        if self._socket is not None:
            self._socket.close()

    async def close(self) -> None:
        """Stop accepting, and abort handshakes and open connections."""
        self._guard.close()
        await self.stop_accepting()
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                # Until 3.11.4 Python's transports forget their connection when they are closed twice, and cannot abort
                # it after that; it is being shut down then, and ends with the event loop at the latest.
                with contextlib.suppress(AttributeError):
                    transport.abort()
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn of the loop

    def _context(self) -> ssl.SSLContext:
        """The TLS context of the next connection."""
        return self._identity.server_context(self._policy, alpn=self._alpn, alpn_required=self._alpn_required)

    def _opened(self, transport: asyncio.Transport) -> None:
        """Called after each complete handshake: end the connection when its peer is revoked."""
        self._guard.add(transport)

    async def _accept_loop(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await accept(listening)
            except OSError as error:
                _LOG.error("%s: cannot accept: %s", self._channel, error)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            task = asyncio.create_task(self._admit(accepted, format_address(address)))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            task.add_done_callback(self._pending.discard)
            if (gone := self._pending.add(task, address[0])) is not None:
                self._displace(gone)
            await asyncio.sleep(0)  # a flood of new connections must not disturb the open ones

    def _displace(self, handshake: asyncio.Task[None]) -> None:
        self.refused += 1
        handshake.cancel()
        now = asyncio.get_running_loop().time()
        if now - self._complained >= COMPLAINT_SECONDS:
            self._complained = now
            _LOG.warning(
                "%s: more than %d concurrent handshakes, closing the oldest", self._channel, len(self._pending)
            )

    async def _admit(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._handshake(accepted, address)
        except (OSError, PkiError) as error:
            # All errors that a peer can cause end here: SSLError, a reset, a timeout (ConnectionAbortedError).
            self.refused += 1
            _LOG.warning("%s: refused %s: %s", self._channel, address, _reason(error))

    def _is_full(self) -> bool:
        # Counting those that are not closing is slow for many connections: only when it may matter.
        if len(self._transports) < self._max_connections:
            return False
        return sum(not transport.is_closing() for transport in self._transports) >= self._max_connections

    async def _handshake(self, accepted: socket.socket, address: str) -> None:
        handed_over = False
        try:
            if self._is_full():
                raise PkiError(f"{self._max_connections} connections are open already")
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._context()
            handed_over = True
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol_factory,
                accepted,
                ssl=context,
                ssl_handshake_timeout=self._handshake_timeout,
            )
        finally:
            if not handed_over:
                accepted.close()
        self._transports.add(transport)
        self._opened(transport)
        if self._connections is not None and not transport.is_closing():
            connection = self._connections.record(self._channel, "accepted", self._identity.spiffe_id, transport)
            _LOG.debug("%s: admitted %s from %s", self._channel, connection.peer, address)


def _reason(error: Exception) -> str:
    """The reason of a refusal for the log: bounded, without control characters of the peer."""
    return printable(str(error) or type(error).__name__)[:500]
