"""Requests of the gateway's own processes to REST, with a signed assertion of the principal they act for."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from sluice.core import BodyTooLarge, host_port, read_body, tcp_connector
from sluice.gateway.errors import GatewayError
from sluice.gateway.upstreams import UnixUpstream, Upstream
from sluice.pki import Channel, Role, server_policy
from sluice.pki.assertions import HEADER
from sluice.pki.tls import TlsIdentity


class RestUnavailable(GatewayError):
    """REST does not answer, or sends an unexpected response."""


@dataclass(frozen=True, slots=True)
class RestClient:
    """A client of REST at ``upstream``. ``identity`` is this process's, needed when REST runs on another machine."""

    upstream: Upstream
    identity: TlsIdentity | None

    async def request(
        self, method: str, path: str, assertion: str, *, expected: frozenset[int], seconds: float, max_bytes: int
    ) -> bytes:
        """Send a request and return the body of the response.

        Raises:
            RestUnavailable: no response within ``seconds``, a status that is not ``expected``, or a too large body.
        """
        timeout = aiohttp.ClientTimeout(total=seconds)
        connector, url = self._connector(), self._url(path)
        headers = {HEADER: assertion}
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(method, url, headers=headers, server_hostname="", allow_redirects=False) as answer,
            ):
                body = await read_body(answer.content, max_bytes)
                if answer.status not in expected:
                    raise RestUnavailable(f"REST answered {path} with status {answer.status}")
                return body
        except (aiohttp.ClientError, OSError, TimeoutError, BodyTooLarge) as error:
            raise RestUnavailable(f"no answer from REST: {error or type(error).__name__}") from error

    def _connector(self) -> aiohttp.BaseConnector:
        if isinstance(self.upstream, UnixUpstream):
            return aiohttp.UnixConnector(str(self.upstream.path), force_close=True)
        if self.identity is None:
            raise RestUnavailable("REST is on another machine, and this process has no identity to connect with")
        policy = server_policy(Channel.REST, self.identity.spiffe_id.trust_domain, role=Role.JOBMANAGER)
        return tcp_connector(ssl=self.identity.client_context(policy, alpn=("http/1.1",)), force_close=True)

    def _url(self, path: str) -> str:
        if isinstance(self.upstream, UnixUpstream):
            return f"http://rest{path}"
        return f"https://{host_port(self.upstream.host, self.upstream.port)}{path}"
