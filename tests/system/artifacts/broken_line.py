"""A TCP proxy between a client and the gateway that cuts connections after a number of bytes.

A cut is either a reset or an orderly end.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

CHUNK_BYTES = 64 << 10
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Break:
    """When a connection is cut: after ``sent`` bytes from clients since the last break.

    ``happens`` is called just before the cut. With ``reset`` both ends see a reset; otherwise they see the
    orderly end of a connection.
    """

    sent: int
    reset: bool = True
    happens: Callable[[], object] = lambda: None


@dataclass
class BrokenLine:
    """Forwards connections to the current address of the Envoy of ``home``, without decrypting them.

    While ``mended`` is not set, new connections are dropped, so that a test can look at what a break has left.
    """

    home: Path
    breaks: deque[Break]
    sent: int = 0
    broken: int = 0
    mended: threading.Event = field(default_factory=threading.Event)
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    _since_break: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Start to accept clients."""
        self.mended.set()
        threading.Thread(target=self._serve, name="broken line", daemon=True).start()

    @property
    def url(self) -> str:
        """The URL that clients use."""
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Stop accepting clients."""
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError, KeyError):
            if not self.mended.is_set():
                return
            address = json.loads((self.home / "run" / "endpoints" / "envoy.json").read_text())
            with socket.create_connection((address["host"], address["port"])) as server:
                threading.Thread(target=_copy, args=(server, client), daemon=True).start()
                while chunk := client.recv(CHUNK_BYTES):
                    broken = self._count(len(chunk))
                    if broken is not None:
                        _cut(broken, client, server)
                        return
                    server.sendall(chunk)
                server.shutdown(socket.SHUT_WR)

    def _count(self, size: int) -> Break | None:
        """Count ``size`` more bytes; return the break that is now due, if any."""
        with self._lock:
            self.sent += size
            self._since_break += size
            if not self.breaks or self._since_break < self.breaks[0].sent:
                return None
            self._since_break = 0
            self.broken += 1
            self.mended.clear()
            return self.breaks.popleft()


def _cut(broken: Break, *ends: socket.socket) -> None:
    broken.happens()
    for end in ends:
        if broken.reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        else:
            end.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
