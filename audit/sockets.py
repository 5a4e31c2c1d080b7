"""A listening socket as the kernel knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelSocket:
    """One listening socket; ``path`` is set for unix sockets, the rest for the others."""

    process: str
    pid: int
    command: str
    host: str = ""
    port: int = 0
    path: str = ""
    udp: bool = False
