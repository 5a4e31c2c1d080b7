"""A faulty network: a proxy in front of each worker that can reset, stall or change connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

CHUNK_BYTES = 32 << 10
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Forwards connections to one worker. TLS is end to end; the proxy decrypts nothing."""

    def __init__(self, port: int) -> None:
        self._server: asyncio.Server | None = None
        self._behind = port
        self._open: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._until_reset = -1
        self._changes = 0
        self.passed = 0
        """Bytes so far, both ways."""
        self.harmed = 0
        """Chunks that were changed, kept waiting or cut off, and connections that were reset."""

    @classmethod
    async def open(cls, port: int) -> FaultProxy:
        """Start a proxy to the worker at ``port``. The proxy listens on its own port."""
        proxy = cls(port)
        proxy._server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0, limit=CHUNK_BYTES)
        return proxy

    @property
    def port(self) -> int:
        """The port for clients."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening, and reset all open connections."""
        if self._server is not None:
            self._server.close()
        self.reset()

    def lead_to(self, port: int) -> None:
        """Forward new connections to ``port``, because the worker listens there now."""
        self._behind = port

    def reset(self) -> None:
        """Reset all connections at both ends."""
        self.harmed += len(self._open)
        for writer in self._open:
            with contextlib.suppress(OSError):  # the other end has closed it a moment ago
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()
        self._open.clear()

    def reset_after(self, size: int) -> None:
        """Reset all connections after ``size`` more bytes, possibly in the middle of a frame."""
        self._until_reset = size

    def change(self, records: int) -> None:
        """Flip a bit in each of the next ``records`` chunks."""
        self._changes = records

    def repair(self) -> None:
        """Cancel pending resets and changes."""
        self._changes, self._until_reset = 0, -1

    async def stall(self, seconds: float) -> None:
        """Hold back all data for a while, without losing any."""
        self._passing.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._passing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._behind, limit=CHUNK_BYTES)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, inner_writer}
        try:
            await asyncio.gather(self._pass(reader, inner_writer), self._pass(inner_reader, writer))
        finally:
            for each in (writer, inner_writer):
                self._open.discard(each)
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                self.passed += len(data)
                if not self._passing.is_set():
                    self.harmed += 1
                    await self._passing.wait()
                if self._changes:
                    self._changes -= 1
                    self.harmed += 1
                    changed = bytearray(data)
                    changed[len(changed) // 2] ^= 0x04
                    data = bytes(changed)
                if self._until_reset >= 0:
                    self._until_reset -= len(data)
                    if self._until_reset < 0:
                        self._until_reset = -1
                        self.reset()
                        return
                writer.write(data)
                await writer.drain()
            writer.close()
