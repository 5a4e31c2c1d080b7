"""The listener of the ACME server: TLS with a certificate of the edge authority, and no client certificate."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import Callable

from sluice.core import PkiError
from sluice.pki.acme.identifiers import host_identifier
from sluice.pki.channels import Channel
from sluice.pki.issuing import HostRequest, IssuedHost
from sluice.pki.tls import ServerAuthListener, TlsIdentity, host_server_context
from sluice.pki.x509 import HostNames, PrivateKey, Profile, generate_key, key_to_pem

MAX_CONNECTIONS = 512
"""Most open connections; when exceeded, the oldest one of the busiest address is closed."""
CONNECTION_SECONDS = 300.0
"""How long a connection may last: long enough for a whole order."""
ALPN = ("http/1.1",)


class ServerCertificate:
    """The certificate of the listener; its key exists only in memory, and each start makes a new one."""

    def __init__(self, host: str, profile: Profile, *, clock: Callable[[], dt.datetime]) -> None:
        identifier = host_identifier(host)
        dns, ips = ((identifier.value,), ()) if identifier.type == "dns" else ((), (identifier.value,))
        self._names = HostNames.checked(dns, ips)
        self._profile = profile
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._renew_at: dt.datetime | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        if self._context is None:
            raise PkiError("the ACME server has no certificate yet")
        return self._context

    @property
    def is_due(self) -> bool:
        """Whether there is none, or half of its life has passed."""
        return self._renew_at is None or self._clock() >= self._renew_at

    def request(self) -> tuple[PrivateKey, HostRequest]:
        """Make a new key; returns the request for its certificate."""
        key = generate_key()
        return key, HostRequest(self._names, self._profile, key.public_key(), "acme:server")

    def take(self, key: PrivateKey, issued: IssuedHost) -> None:
        """Use the issued certificate from the next connection on."""
        leaf = issued.leaf
        self._context = host_server_context(key_to_pem(key), issued.chain_pem, "the ACME server", ALPN)
        now = self._clock()
        self._renew_at = now + (leaf.not_valid_after_utc - now) / 2


class AcmeListener(ServerAuthListener):
    """Shows ``certificate``, and asks the client for none."""

    def __init__(
        self, identity: TlsIdentity, certificate: ServerCertificate, protocol_factory: Callable[[], asyncio.Protocol]
    ) -> None:
        super().__init__(
            identity,
            Channel.ACME,
            protocol_factory,
            alpn=ALPN,
            connection_seconds=CONNECTION_SECONDS,
            max_connections=MAX_CONNECTIONS,
        )
        self._certificate = certificate

    def _context(self) -> ssl.SSLContext:
        return self._certificate.context
