"""REST of a JobManager: served locally while it leads, forwarded to the leader otherwise.

A standby forwards over mutual TLS; for that, the ``rest`` channel admits JobManagers. The gateway's assertion about the
user travels with the request, and the leader verifies it in the same way as from a gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import aiohttp
from aiohttp import web

from sluice.core import host_port, tcp_connector
from sluice.pki import Channel, Role, server_policy
from sluice.pki.tls import TlsIdentity
from sluice.runtime.ha import LeaderInformation, LeadershipLost
from sluice.runtime.rest import Cluster, RestHandler, Route, handler_of
from sluice.runtime.rest_server.routes import HEALTH, PUBLISHED

FORWARDED_HEADER = "x-sluice-forwarded-by"
"""Set by a standby. A JobManager that receives such a request but does not lead refuses it, to prevent loops."""
CONNECT_SECONDS = 5.0
STALL_SECONDS = 60.0
CHUNK_BYTES = 64 << 10

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "expect",
    }
)
"""Hop-by-hop headers (RFC 9110, 7.6.1), and those that the HTTP client sets itself."""

WhoLeads = Callable[[], Awaitable[LeaderInformation | None]]


class RestSwitch:
    """Serves the operations of :data:`sluice.runtime.rest_server.routes.PUBLISHED` itself, or forwards to the leader.


    Args:
        identity: the TLS identity for forwarded requests.
        origin: the ID of this home; a leader with the same origin is reached over its Unix socket.
        who_leads: returns the current leader, or None.
    """

    def __init__(self, identity: TlsIdentity, origin: str, who_leads: WhoLeads) -> None:
        self._identity = identity
        self._origin = origin
        self._who_leads = who_leads
        self._here: Mapping[Route, RestHandler] | None = None

    @contextlib.contextmanager
    def leading(self, cluster: Cluster) -> Iterator[None]:
        """Serve requests for ``cluster`` within the context."""
        self._here = {route: handler_of(route, cluster) for route in (HEALTH, *PUBLISHED)}
        try:
            yield
        finally:
            self._here = None
            cluster.feed.close()

    async def close(self) -> None:
        """Do nothing: no connections are kept open between requests."""

    def serve(self, route: Route) -> RestHandler:
        """A handler for ``route`` that serves or forwards requests."""

        async def handle(request: web.Request) -> web.StreamResponse:
            here = self._here
            return await (self._forward(request) if here is None else here[route](request))

        return handle

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if FORWARDED_HEADER in request.headers:
            raise LeadershipLost("this JobManager does not lead", "try again: a leader is being elected")
        leader = await self._who_leads()
        if leader is None:
            raise LeadershipLost("no JobManager leads at the moment", "try again: a leader is being elected")
        try:
            async with self._session(leader) as (session, url):
                return await self._relay(request, session, url)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LeadershipLost(
                f"the leader {leader.name} cannot be reached: {type(error).__name__}", "try again in a moment"
            ) from error

    @contextlib.asynccontextmanager
    async def _session(self, leader: LeaderInformation) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=STALL_SECONDS)
        connector: aiohttp.BaseConnector
        if leader.origin == self._origin:
            connector, url = aiohttp.UnixConnector(leader.rest), "http://leader"
        elif leader.rest_tls is not None:
            host, port = leader.rest_tls
            domain = self._identity.spiffe_id.trust_domain
            policy = server_policy(Channel.REST, domain, role=Role.JOBMANAGER, name=leader.name)
            connector = tcp_connector(ssl=self._identity.client_context(policy, alpn=("http/1.1",)), force_close=True)
            url = f"https://{host_port(host, port)}"
        else:
            raise LeadershipLost(
                f"the leader {leader.name} serves REST on its own machine only", "set jobmanager.rest_host"
            )
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            yield session, url

    async def _relay(self, request: web.Request, session: aiohttp.ClientSession, url: str) -> web.StreamResponse:
        headers = _end_to_end(request.headers)
        headers.append((FORWARDED_HEADER, self._identity.spiffe_id.name))
        async with session.request(
            request.method,
            url + request.raw_path,
            headers=headers,
            data=request.content.iter_chunked(CHUNK_BYTES) if request.can_read_body else None,
            allow_redirects=False,
        ) as answer:
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            for name, value in _end_to_end(answer.headers):
                response.headers.add(name, value)
            await response.prepare(request)
            async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                await asyncio.wait_for(response.write(chunk), STALL_SECONDS)
            await response.write_eof()
            return response


def _end_to_end(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers to forward, including repeated ones, without hop-by-hop headers and those in ``Connection``."""
    named = {each.strip().lower() for each in headers.get("connection", "").split(",")}
    return [(name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP | named]
