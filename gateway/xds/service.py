"""An xDS server together with its board and its status report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.core import listen_unix
from sluice.core.grpc import Caller, GrpcServer, Method
from sluice.core.xds import SnapshotBoard
from sluice.gateway.xds.server import xds_server
from sluice.gateway.xds.status import XdsStatus
from sluice.pki import Role, SpiffeId


@dataclass(frozen=True, slots=True)
class XdsService:
    """The board to publish on, the status report, and the server."""

    board: SnapshotBoard
    status: XdsStatus
    server: GrpcServer


@contextlib.asynccontextmanager
async def xds_service(
    status_path: Path, socket_path: Path | None = None, more: Mapping[str, Method] | None = None
) -> AsyncIterator[XdsService]:
    """Serve on ``socket_path``; None: only connections that a listener passes on. ``more`` are additional methods."""
    board, status = SnapshotBoard(), XdsStatus(status_path)
    server = xds_server(board, status, _admits, more)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(status.close)
        if socket_path is not None:
            stack.callback(socket_path.unlink, missing_ok=True)
            await server.start(listen_unix(socket_path))
        stack.push_async_callback(server.close)
        yield XdsService(board, status, server)


def _admits(caller: Caller) -> bool:
    """Over TLS, only gateways (the listener also admits JobManagers). On a socket, only this process's own user."""
    if caller.spiffe_id:
        return SpiffeId.parse(caller.spiffe_id).role is Role.GATEWAY
    return caller.uid == os.geteuid()
