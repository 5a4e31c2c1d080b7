"""Outlets: sockets of the audit on this machine that answer everything, and record the sender.

A job that tries to leave connects to them. The job can only claim that a call was refused; the outlets prove that
nothing arrived.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sluice.audit.insider.payload import GREETING, OUTLET, Place, Target
from sluice.core import host_port

MAX_CONNECTIONS = 256
MAX_HEARD_BYTES = 1024
_LOOK_SECONDS = 0.1


@dataclass
class Outlets:
    """The outlets of a run, and what they received.

    Attributes:
        targets: for the job.
        heard: attempts and places whose mark has arrived.
    """

    nonce: str
    targets: tuple[Target, ...] = ()
    heard: set[tuple[str, Place]] = field(default_factory=set)

    @property
    def marks(self) -> frozenset[tuple[str, Place]] | None:
        """The marks received so far; None without outlets."""
        return frozenset(self.heard) if self.targets else None

    def note(self, data: bytes) -> None:
        """Record the mark in ``data``."""
        text = data[:MAX_HEARD_BYTES].decode("latin-1")
        for id_, place in re.findall(rf"{re.escape(self.nonce)} (EGR-\d\d) ([a-z-]{{1,16}})", text):
            if place in set(Place):
                self.heard.add((id_, Place(place)))


@contextlib.contextmanager
def outlets(nonce: str) -> Iterator[Outlets]:
    """Listen with TCP and UDP on loopback of both families, within the block."""
    made = Outlets(nonce)
    with contextlib.ExitStack() as stack:
        listening: list[socket.socket] = []
        targets: list[Target] = []
        for name, family, kind, host in (
            ("tcp4", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
            ("tcp-other", socket.AF_INET, socket.SOCK_STREAM, "127.255.255.254"),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, "::1"),
            ("udp4", socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
            ("udp6", socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
        ):
            opened = stack.enter_context(socket.socket(family, kind))
            try:
                opened.bind((host, 0))
            except OSError:  # this machine has no IPv6
                continue
            if kind == socket.SOCK_STREAM:
                opened.listen(64)
            opened.setblocking(False)
            listening.append(opened)
            port = opened.getsockname()[1]
            targets.append(Target(OUTLET, host_port(host, port), name))
        targets.append(Target("network", "/proc/self/ns/net", "network", str(Path("/proc/self/ns/net").stat().st_ino)))
        made.targets = tuple(targets)
        stop = threading.Event()
        serving = threading.Thread(target=_serve, args=(listening, made, stop), name="outlets", daemon=True)
        serving.start()
        try:
            yield made
        finally:
            stop.set()
            serving.join()


def _serve(listening: list[socket.socket], made: Outlets, stop: threading.Event) -> None:
    answer = GREETING + made.nonce.encode() + b"\n"
    with selectors.DefaultSelector() as ready:
        for each in listening:
            ready.register(each, selectors.EVENT_READ, "listening")
        connections = 0
        while not stop.is_set():
            for key, _ in ready.select(_LOOK_SECONDS):
                one = key.fileobj
                if not isinstance(one, socket.socket):
                    continue
                with contextlib.suppress(OSError):
                    if key.data == "connected":
                        data = one.recv(MAX_HEARD_BYTES)
                        made.note(data)
                        if data:
                            one.send(answer)
                        ready.unregister(one)
                        one.close()
                        connections -= 1
                    elif one.type == socket.SOCK_DGRAM:
                        data, peer = one.recvfrom(MAX_HEARD_BYTES)
                        made.note(data)
                        one.sendto(answer, peer)
                    elif connections < MAX_CONNECTIONS:
                        accepted, _ = one.accept()
                        accepted.setblocking(False)
                        ready.register(accepted, selectors.EVENT_READ, "connected")
                        connections += 1
        for key in list(ready.get_map().values()):
            if key.data == "connected" and isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
