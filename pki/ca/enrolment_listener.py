"""The enrolment listener: TLS with a server certificate only, on a separate port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from sluice.pki.channels import Channel
from sluice.pki.tls import ServerAuthListener, TlsIdentity, enrolment_server_context

MAX_STRANGERS = 512
"""Most open connections; when exceeded, the oldest one of the busiest address is closed."""
CONNECTION_SECONDS = 30.0
"""How long an unauthenticated connection may last: enough for an enrolment, too short to block a place."""


class EnrolmentListener(ServerAuthListener):
    """Shows the certificate of ``identity``, and asks the client for none."""

    def __init__(
        self,
        identity: TlsIdentity,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        alpn: tuple[str, ...],
        connection_seconds: float = CONNECTION_SECONDS,
        max_connections: int = MAX_STRANGERS,
    ) -> None:
        super().__init__(
            identity,
            Channel.ENROLMENT,
            protocol_factory,
            alpn=alpn,
            connection_seconds=connection_seconds,
            max_connections=max_connections,
        )
        self._built_from = identity.material
        self._built = enrolment_server_context(self._built_from, alpn)

    def _context(self) -> ssl.SSLContext:
        material = self._identity.material
        if material is not self._built_from:
            self._built_from, self._built = material, enrolment_server_context(material, self._alpn)
        return self._built
