"""The REST endpoint: HTTP on a unix socket that only its owner can open. Authentication is the gateway's task."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from aiohttp import web

from pki.errors import SluiceError
from pki.files import make_private_directory
from runtime.rest.handlers import Handlers
from runtime.rest.problems import problems
from runtime.rest.routes import ROUTES

SOCKET_MODE = 0o600
BACKLOG = 128
MAX_HEADER_BYTES = 16 << 10
SHUTDOWN_SECONDS = 2.0
"""How long requests in progress get when the JobManager stops."""


class RestUnavailable(SluiceError):
    """The REST socket cannot be made."""


def make_application(handlers: Handlers) -> web.Application:
    """All of :data:`ROUTES` and nothing else; bodies are read by the one operation that takes any."""
    application = web.Application(middlewares=[problems])
    by_operation = handlers.by_operation()
    for route in ROUTES:
        application.router.add_route(route.method, route.path, by_operation[route.operation])
    return application


class RestServer:
    """Serves an application on a unix socket."""

    def __init__(self, application: web.Application, path: Path) -> None:
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_SECONDS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self.path = path

    async def start(self) -> None:
        """Listen; the socket has mode 0600 from the moment it exists."""
        make_private_directory(self.path.parent)
        await self._runner.setup()
        await web.SockSite(self._runner, _private_socket(self.path), backlog=BACKLOG).start()

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        await self._runner.cleanup()


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
