"""Free ports, for servers that cannot report the port they bind and for connections that must find no listener."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 30_000
"""Lower ports are for programs in the networks of sandboxes, and must not be confused with these."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_held: list[socket.socket] = []
"""One abstract socket name per port. It reserves the port for this process until its end."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that are free for TCP and UDP, that no other test gets, and that are not ephemeral ports."""
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
    """Return one free port; see :func:`free_ports`."""
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
    """Reserve a port for this process; False if another has it. A name in Linux's abstract namespace has one owner."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0sluice-test-port-{port}")
    except OSError:
        name.close()
        return False
    _held.append(name)
    return True
