"""Serving the metrics of a process on a unix socket that only its owner can open.

There is no TCP listener: the JobManager's ``GET /v1/metrics`` gathers all processes of its home through these sockets,
and the TaskManagers of other machines over RPC, and is reached through the gateway like everything else. A module of
its own, because loading an HTTP server takes longer than starting Python.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from sluice.core.files import make_private_directory
from sluice.core.home import Home
from sluice.core.http_body import BodyTooLarge, read_body
from sluice.core.metrics.registry import CONTENT_TYPE, render

MAX_EXPOSITION_BYTES = 4 << 20
"""Largest answer of one process, in bytes."""
ANSWER_SECONDS = 3.0


def socket_of(home: Home, process: str) -> Path:
    """The metrics socket of ``process`` of ``home`` (its name as in its certificate, ``taskmanager/tm-1``)."""
    return home.metric_sockets / f"{hashlib.sha256(process.encode()).hexdigest()[:12]}.sock"


@asynccontextmanager
async def serving(home: Home, process: str, text: Callable[[], str] | None = None) -> AsyncIterator[Path]:
    """Serve the metrics of this process, called ``process``, on a socket of ``home``; yields its path."""
    shown = text or (lambda: render(process))

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=shown().encode(), headers={"content-type": CONTENT_TYPE})

    make_private_directory(home.metric_sockets)
    path = socket_of(home, process)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    os.fchmod(listening.fileno(), 0o600)  # before bind, so that the socket never has another mode
    listening.bind(str(path))
    runner = web.ServerRunner(web.Server(answer, access_log=None), handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield path
    finally:
        path.unlink(missing_ok=True)
        await runner.cleanup()


async def fetch(path: Path) -> str | None:
    """The metrics of the process at a socket; None: it has ended, or does not answer."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session,
            session.get("http://metrics/metrics") as answer,
        ):
            data = await read_body(answer.content, MAX_EXPOSITION_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError, BodyTooLarge):
        return None
    return data.decode(errors="replace")
