"""Requests to the auth service of another machine, over mutual TLS."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from sluice.core import AssertionRefused, BodyTooLarge, host_port, read_body, tcp_connector
from sluice.pki import Channel, Role, server_policy
from sluice.pki.tls import TlsIdentity


@dataclass(frozen=True, slots=True)
class AuthService:
    """The auth service at ``host`` and ``port``, which must have the role ``auth``; ``identity`` is shown to it."""

    identity: TlsIdentity
    host: str
    port: int

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, max_bytes: int, seconds: float
    ) -> bytes:
        """The body of the answer; raises :class:`~sluice.core.errors.AssertionRefused` unless that has status 200."""
        policy = server_policy(Channel.AUTH, self.identity.spiffe_id.trust_domain, role=Role.AUTH)
        context = self.identity.client_context(policy, alpn=("http/1.1",))
        connector = tcp_connector(ssl=context)  # it closes its one connection with the session, and waits for that
        url = f"https://{host_port(self.host, self.port)}{path}"
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds)) as session,
                session.request(method, url, data=body, server_hostname="", allow_redirects=False) as answer,
            ):
                data = await read_body(answer.content, max_bytes)
                if answer.status != 200:
                    raise AssertionRefused(f"the auth service answered {path} with status {answer.status}")
                return data
        except (aiohttp.ClientError, TimeoutError, BodyTooLarge) as error:
            raise AssertionRefused(f"no answer from the auth service: {error or type(error).__name__}") from error
