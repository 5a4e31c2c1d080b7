"""Ports for servers that cannot say which one they got, and for connections that must find nobody."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 30_000
"""Below are the ports of programs in the networks of boxes, with which these must not be confused."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_held: list[socket.socket] = []
"""A name per port, which no other test gets before this process has ended."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports, TCP and UDP, that nobody has, that no other test gets, and that the kernel gives to nobody by itself."""
    end = int(_EPHEMERAL.read_text().split()[0])
    candidates = range(LOWEST, end) if end > LOWEST + 1000 else range(LOWEST, 1 << 16)
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if len(found) == count:
            break
        if _is_free(host, port) and _hold(port):
            found.append(port)
    assert len(found) == count, "there are no free ports"
    return found


def free_port(host: str = "127.0.0.1") -> int:
    """One of them."""
    (port,) = free_ports(1, host)
    return port


def _is_free(host: str, port: int) -> bool:
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(type=kind) as probe:
                probe.bind((host, port))
    except OSError:
        return False
    return True


def _hold(port: int) -> bool:
    """Whether this process is the one that may use it: names in Linux's abstract namespace belong to one socket."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0sluice-test-port-{port}")
    except OSError:
        name.close()
        return False
    _held.append(name)
    return True
