"""The enrolment listener: TLS with a server certificate only, on a separate port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from sluice.pki.channels import Channel, client_policy
from sluice.pki.tls import MutualTlsListener, PendingPeers, TlsIdentity, enrolment_server_context

MAX_STRANGERS = 512
"""Most open connections; beyond it the oldest one of the busiest address is closed."""
CONNECTION_SECONDS = 30.0
"""How long a connection of a stranger may last: enough for an enrolment, too short to occupy a place with."""


class EnrolmentListener(MutualTlsListener):
    """As its base, with its bounds on handshakes and connections, but asking the client for no certificate."""

    def __init__(
        self,
        identity: TlsIdentity,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        alpn: tuple[str, ...],
        connection_seconds: float = CONNECTION_SECONDS,
        max_connections: int = MAX_STRANGERS,
    ) -> None:
        policy = client_policy(Channel.ENROLMENT, identity.spiffe_id.trust_domain)
        self._strangers: PendingPeers[asyncio.Transport] = PendingPeers(max_connections)
        super().__init__(identity, Channel.ENROLMENT, policy, protocol_factory, alpn=alpn)
        self._connection_seconds = connection_seconds
        self._built_from = identity.material
        self._built = enrolment_server_context(self._built_from, alpn)

    def _context(self) -> ssl.SSLContext:
        material = self._identity.material
        if material is not self._built_from:
            self._built_from, self._built = material, enrolment_server_context(material, self._alpn)
        return self._built

    def _opened(self, transport: asyncio.Transport) -> None:
        for each in [each for each in self._strangers if each.is_closing()]:
            self._strangers.discard(each)
        host = (transport.get_extra_info("peername") or ("",))[0]
        if (gone := self._strangers.add(transport, host)) is not None:
            self.refused += 1
            gone.abort()
        asyncio.get_running_loop().call_later(self._connection_seconds, self._end, transport)

    def _end(self, transport: asyncio.Transport) -> None:
        self._strangers.discard(transport)
        transport.abort()
