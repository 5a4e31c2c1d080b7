"""A TCP relay between two peers that can fail as networks do."""

from __future__ import annotations

import asyncio
import contextlib


class Relay:
    """Forwards bytes to a target; :meth:`freeze` swallows them silently, :meth:`cut` resets the connections."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._frozen = False

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self.address

    @property
    def address(self) -> tuple[str, int]:
        """The address of the relay."""
        host, port = self._server.sockets[0].getsockname()
        return host, port

    def freeze(self) -> None:
        """From now on nothing gets through, not even that one side has closed."""
        self._frozen = True

    def cut(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """Close the relay and its connections."""
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not self._frozen:
                    sink.write(data)
                    await sink.drain()
            if not self._frozen:
                sink.close()
