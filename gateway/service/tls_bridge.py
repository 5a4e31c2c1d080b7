"""Forwards admitted connections of a mutual TLS listener to a server on a Unix socket.

gRPC's C core has its own TLS, which does not support this project's rules (TLS 1.3 only, identity and revocation
checked in the handshake, no resumption, bounded handshakes, renewed certificates), and it cannot adopt an existing
connection. So our own listener terminates TLS, and the bytes go over a socket that only this user can open (ADR 112).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

_LOG = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
"""Timeout for connecting to the server on the socket."""


class Bridge(asyncio.Protocol):
    """Forwards the bytes of one connection in both directions, with flow control."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._near: asyncio.Transport | None = None
        self._far: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is admitted. Nothing is read from it until the server is connected."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a bridge carries streams")
        self._near = transport
        transport.pause_reading()
        self._opening = asyncio.create_task(self._open(transport))

    async def _open(self, near: asyncio.Transport) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                far, _ = await asyncio.get_running_loop().create_unix_connection(lambda: _FarEnd(self), str(self._path))
        except (OSError, TimeoutError) as error:
            _LOG.warning("cannot forward a connection to the gRPC server: %s", error or type(error).__name__)
            near.abort()
            return
        if near.is_closing():
            far.abort()
            return
        self._far = far
        near.resume_reading()

    def data_received(self, data: bytes) -> None:
        """The peer sent data."""
        if self._far is not None:
            self._far.write(data)

    def eof_received(self) -> bool:
        """The peer sent EOF. Close the connection, because HTTP/2 has no half-open connections."""
        return False

    def pause_writing(self) -> None:
        """The peer reads slowly."""
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        if self._far is not None and not self._far.is_closing():
            self._far.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """The peer is gone."""
        if self._opening is not None:
            self._opening.cancel()
        if self._far is not None:
            self._far.close()

    def from_server(self, data: bytes) -> None:
        """The server sent data."""
        if self._near is not None:
            self._near.write(data)

    def server_is_slow(self, *, slow: bool) -> None:
        """The server reads slowly, or has caught up."""
        if self._near is None or self._near.is_closing():
            return
        if slow:
            self._near.pause_reading()
        else:
            self._near.resume_reading()

    def server_gone(self) -> None:
        """The server closed the connection. Data already received from it is still sent to the peer."""
        if self._near is not None:
            self._near.close()


class _FarEnd(asyncio.Protocol):
    """The connection to the server."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def data_received(self, data: bytes) -> None:
        self._bridge.from_server(data)

    def pause_writing(self) -> None:
        self._bridge.server_is_slow(slow=True)

    def resume_writing(self) -> None:
        self._bridge.server_is_slow(slow=False)

    def connection_lost(self, _: Exception | None) -> None:
        self._bridge.server_gone()
