"""The REST listeners: a Unix socket that only its owner can open, and mutual TLS for other machines.

The gateway authenticates users. REST trusts only its signed assertion, on the socket too. The TLS handshake admits only
gateways and the standbys of this cluster, which are checked by name.
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
"""How long requests in progress may take when the JobManager stops."""


class RestUnavailable(SluiceError):
    """The REST socket cannot be created."""


def make_application(serve: Callable[[Route], RestHandler], keys: Callable[[bool], KeySet]) -> web.Application:
    """The application with the routes of :data:`PUBLISHED`, for callers that the gateway asserts, and the health route.


    Args:
        serve: returns the handler of each route; handlers read the bodies.
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
    """Serves an application on a Unix socket and, after :meth:`listen`, on a port over mutual TLS."""

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
        """Prepare the server and open the socket."""
        await self.prepare()
        await self.open_socket()

    async def prepare(self) -> None:
        """Prepare the server without listening yet."""
        make_private_directory(self.path.parent)
        await self._runner.setup()

    async def open_socket(self) -> None:
        """Listen on the socket, which has mode 0600 from its creation. A socket of another process is replaced."""
        listening = _private_socket(self.path)
        self._socket = _Socket(web.SockSite(self._runner, listening, backlog=BACKLOG), self.path.stat().st_ino)
        await self._socket.site.start()

    async def close_socket(self) -> None:
        """Stop listening on the socket, and remove it unless another process has replaced it."""
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
        """Listen for gateways on ``host`` too, after :meth:`start`; return the bound address.


        Args:
            identity: the TLS identity of this JobManager.
            host: the address to listen on.
            port: the port; 0 chooses a free one.
            jobmanagers: names of the JobManagers of this cluster, which forward requests as standbys. No other
                JobManager is admitted, even if it has the same certificate authority.
            connections: the log of connections.

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
        """Stop listening. Requests in progress may take :data:`SHUTDOWN_SECONDS`."""
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
        # fchmod on an unbound Unix socket sets the mode that bind(2) gives the file (unix(7)), so others can never
        # connect.
        os.fchmod(listening.fileno(), SOCKET_MODE)
        listening.bind(str(path))
        path.chmod(SOCKET_MODE)
    except OSError as error:
        listening.close()
        raise RestUnavailable(f"cannot listen on {path}: {error.strerror or error}", "is the path too long?") from error
    return listening
