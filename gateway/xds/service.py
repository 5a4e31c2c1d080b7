"""An xDS server with its board and its report, as each process that has one runs it."""

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
    """Serve on ``socket_path``, or only the connections that a listener passes on; ``more`` are methods besides."""
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
    """Over TLS gateways alone (JobManagers are let in, too); on a socket this process' own user: keys."""
    if caller.spiffe_id:
        return SpiffeId.parse(caller.spiffe_id).role is Role.GATEWAY
    return caller.uid == os.geteuid()
