"""The REST listeners: a unix socket that only its owner can open, and mutual TLS for other machines.

Authentication of users is the gateway's task; who asks is believed from its signed assertion alone, over the socket
too. What comes over the network comes from the gateway, or from a standby of the same cluster: the handshake admits no
other role, and JobManagers by their names alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from sluice.core import SluiceError, make_private_directory
from sluice.pki import Channel, client_policy
from sluice.pki.assertions import KeySet
from sluice.pki.tls import ConnectionLog, MutualTlsListener, TlsIdentity
from sluice.runtime.rest import RestHandler, Route, for_operation, require_assertion
from sluice.runtime.rest.protocol.problems import problems
from sluice.runtime.rest_server.routes import HEALTH, HEALTH_PATH, PUBLISHED

SOCKET_MODE = 0o600
BACKLOG = 128
MAX_HEADER_BYTES = 16 << 10
SHUTDOWN_SECONDS = 2.0
"""How long requests in progress get when the JobManager stops."""


class RestUnavailable(SluiceError):
    """The REST socket cannot be made."""


def make_application(serve: Callable[[Route], RestHandler], keys: Callable[[bool], KeySet]) -> web.Application:
    """All of :data:`PUBLISHED` for whom the gateway asserts, and the health resource.

    Args:
        serve: what answers on each route; bodies are read by the one that takes any.
        keys: the gateway's public keys, see :class:`sluice.pki.assertions.tokens.AssertionVerifier`.
    """
    application = web.Application(middlewares=[problems, require_assertion(keys, except_path=HEALTH_PATH)])
    application.router.add_route(HEALTH.method, HEALTH.path, serve(HEALTH))
    for route in PUBLISHED:
        application.router.add_route(route.method, route.path, for_operation(route.operation, serve(route)))
    return application


@dataclass(frozen=True, slots=True)
class _Socket:
    site: web.SockSite
    inode: int


class RestServer:
    """Serves an application on a unix socket, and where asked on a port over mutual TLS."""

    def __init__(self, application: web.Application, path: Path) -> None:
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_SECONDS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._listener: MutualTlsListener | None = None
        self._socket: _Socket | None = None
        self.path = path

    async def start(self) -> None:
        """Get ready and open the socket."""
        await self.prepare()
        await self.open_socket()

    async def prepare(self) -> None:
        """Get ready; it listens nowhere yet."""
        make_private_directory(self.path.parent)
        await self._runner.setup()

    async def open_socket(self) -> None:
        """Listen on the socket; it has mode 0600 from the moment it exists. One of another process is replaced."""
        listening = _private_socket(self.path)
        self._socket = _Socket(web.SockSite(self._runner, listening, backlog=BACKLOG), self.path.stat().st_ino)
        await self._socket.site.start()

    async def close_socket(self) -> None:
        """Stop to listen on the socket, and remove it unless another process has replaced it."""
        opened, self._socket = self._socket, None
        if opened is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == opened.inode:
                self.path.unlink()
        await opened.site.stop()

    async def listen(
        self,
        identity: TlsIdentity,
        host: str,
        port: int,
        *,
        jobmanagers: Iterable[str] = (),
        connections: ConnectionLog | None = None,
    ) -> tuple[str, int]:
        """Listen on ``host`` (port 0: any free port) for gateways too; returns the address bound. After :meth:`start`.

        Args:
            host, port: where.
            jobmanagers: names of the JobManagers of this cluster, which forward while they stand by; no other
                JobManager is admitted, whatever authority it shares.
            connections: where connections are noted.

        Raises:
            StoreError: the address is taken.
        """
        server = self._runner.server
        if server is None:
            raise RestUnavailable("REST was not started")
        listener = MutualTlsListener(
            identity,
            Channel.REST,
            client_policy(Channel.REST, identity.spiffe_id.trust_domain, jobmanagers=frozenset(jobmanagers)),
            server,
            alpn=("http/1.1",),
            alpn_required=False,
            connections=connections,
        )
        address = await listener.start(host, port)
        self._listener = listener
        return address

    async def close(self) -> None:
        """Stop listening; requests in progress get :data:`SHUTDOWN_SECONDS`."""
        await self.close_socket()
        if self._listener is not None:
            await self._listener.stop_accepting()
        await self._runner.cleanup()
        if self._listener is not None:
            await self._listener.close()


def _private_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        # fchmod of an unbound unix socket sets the mode that bind(2) gives the file (unix(7)): there is no moment
        # at which others could connect.
        os.fchmod(listening.fileno(), SOCKET_MODE)
        listening.bind(str(path))
        path.chmod(SOCKET_MODE)
    except OSError as error:
        listening.close()
        raise RestUnavailable(f"cannot listen on {path}: {error.strerror or error}", "is the path too long?") from error
    return listening
