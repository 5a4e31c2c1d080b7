"""A listener for clients without a certificate: they verify the server's, and have little time."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable

from sluice.pki.channels import Channel, client_policy
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from sluice.pki.tls.pending_peers import PendingPeers


class ServerAuthListener(MutualTlsListener, ABC):
    """A listener with the limits of its base that requests no client certificate.

    Args:
        identity: of this process.
        channel: what kind of connections these are.
        protocol_factory: makes the protocol of a connection.
        alpn: application protocols offered, of which the client must choose one.
        connection_seconds: how long a connection may last.
        max_connections: most open connections; beyond it the oldest one of the busiest address is closed.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        channel: Channel,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        alpn: tuple[str, ...],
        connection_seconds: float,
        max_connections: int,
    ) -> None:
        policy = client_policy(channel, identity.spiffe_id.trust_domain)
        super().__init__(identity, channel, policy, protocol_factory, alpn=alpn)
        self._connection_seconds = connection_seconds
        self._strangers: PendingPeers[asyncio.Transport] = PendingPeers(max_connections)

    @abstractmethod
    def _context(self) -> ssl.SSLContext:
        """The TLS context of the next connection, which asks for no certificate."""

    def _opened(self, transport: asyncio.Transport) -> None:
        for each in [each for each in self._strangers if each.is_closing()]:
            self._strangers.discard(each)
        host = (transport.get_extra_info("peername") or ("",))[0]
        if (gone := self._strangers.add(transport, host)) is not None:
            self.refused += 1
            gone.abort()
        # A weak reference: otherwise each closed connection would stay in memory with its buffers until then.
        asyncio.get_running_loop().call_later(self._connection_seconds, self._end, weakref.ref(transport))

    def _end(self, reference: weakref.ref[asyncio.Transport]) -> None:
        if (transport := reference()) is not None:
            self._strangers.discard(transport)
            transport.abort()
