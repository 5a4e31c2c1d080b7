"""Carries admitted connections of a mutual TLS listener to a server on a unix socket.

gRPC's C core has TLS of its own, which knows neither this project's rules (TLS 1.3 alone, identity and revocation
decided in the handshake, no resumption, bounded handshakes, renewed certificates) nor a way to be given a connection.
So TLS ends here, as everywhere, and the bytes go on over a socket that only this user can open (ADR 112).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

_LOG = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
"""How long the server on the socket may take to accept."""


class Bridge(asyncio.Protocol):
    """One connection, bytes both ways; each side is read only as fast as the other one takes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._near: asyncio.Transport | None = None
        self._far: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is admitted: nothing is read from it until the other side is there."""
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
            _LOG.warning("cannot hand a connection over: %s", error or type(error).__name__)
            near.abort()
            return
        if near.is_closing():
            far.abort()
            return
        self._far = far
        near.resume_reading()

    def data_received(self, data: bytes) -> None:
        """From the peer."""
        if self._far is not None:
            self._far.write(data)

    def eof_received(self) -> bool:
        """The peer says no more: HTTP/2 has no half-open connections."""
        return False

    def pause_writing(self) -> None:
        """The peer reads slowly."""
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._far is not None and not self._far.is_closing():
            self._far.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """The peer is gone."""
        if self._opening is not None:
            self._opening.cancel()
        if self._far is not None:
            self._far.close()

    def from_server(self, data: bytes) -> None:
        """From the server."""
        if self._near is not None:
            self._near.write(data)

    def server_is_slow(self, *, slow: bool) -> None:
        """The server takes no more for now, or again."""
        if self._near is None or self._near.is_closing():
            return
        if slow:
            self._near.pause_reading()
        else:
            self._near.resume_reading()

    def server_gone(self) -> None:
        """The server ended the connection: what it has said still goes out."""
        if self._near is not None:
            self._near.close()


class _FarEnd(asyncio.Protocol):
    """The side of the server."""

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
