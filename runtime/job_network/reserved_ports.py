"""Ports of this host that are reserved for one process of a job, which listens on them from its own network.

A holder socket is bound but never listens, so nobody else can take its port. Whenever the job listens, it gets a new
socket on the same port: a new SparkContext must not get the socket of the stopped one, with connections that nobody
accepts.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping, Sequence

from sluice.core import SluiceError

PRIVATE_PORTS = range(10_000, 30_000)
"""The ephemeral ports of a sandbox's network. Ports of the job's other processes must differ from them."""
MAX_PASSED = 200
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PortsNotReserved(SluiceError):
    """No port could be reserved on the host that a process of a job advertises."""


class ReservedPorts:
    """Reserves ports of the machine for a process of a job.


    Args:
        host: an address, or a name that resolves to one.
        names: the purpose of each port.

    Raises:
        PortsNotReserved: ``host`` is not an address of this machine, or has no free port.
    """

    def __init__(self, host: str, names: Sequence[str]) -> None:
        self._host = host
        self._holders: dict[int, socket.socket] = {}
        self._ports: dict[str, int] = {}
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._address = ipaddress.ip_address(found[0][4][0])
            for name in names:
                holder = _reserved(self._address)
                self._ports[name] = port = holder.getsockname()[1]
                self._holders[port] = holder
        except (OSError, ValueError, UnicodeError) as error:
            self.close()
            what = f"no port of {host} can be reserved for a job: {error}"
            raise PortsNotReserved(what, "check taskmanager.host") from error

    @property
    def ports(self) -> tuple[int, ...]:
        """All reserved ports."""
        return tuple(self._holders)

    @property
    def hosts(self) -> Mapping[str, str]:
        """The host name with its address, if the host is a name: a process listens on the host that it advertises."""
        return {} if self._host == str(self._address) else {self._host: str(self._address)}

    @property
    def by_name(self) -> Mapping[str, int]:
        """Each port by its purpose."""
        return self._ports

    def listener(self, address: Address, port: int) -> socket.socket | None:
        """A socket for a job that listens on ``port`` of ``address`` in its network: bound, not listening yet.

        None if the port is not reserved, if the address is neither this host's, nor loopback, nor the wildcard
        address, or if the port cannot be bound.
        """
        plain = _plain(address)
        if port not in self._holders or not (plain in (self._address, _ANY4, _ANY6) or plain.is_loopback):
            return None
        with contextlib.suppress(OSError):
            return _bound(self._address, port)
        return None

    def close(self) -> None:
        """Release the ports."""
        for holder in self._holders.values():
            holder.close()
        self._holders.clear()


_ANY4, _ANY6 = ipaddress.IPv4Address("0.0.0.0"), ipaddress.IPv6Address("::")  # noqa: S104 - compared, not bound


def _plain(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _reserved(address: Address) -> socket.socket:
    """A holder of a port outside of the ephemeral range that programs of a job get in their own network."""
    passed: list[socket.socket] = []
    try:
        for _ in range(MAX_PASSED):
            holder = _bound(address, 0)
            if holder.getsockname()[1] not in PRIVATE_PORTS:
                return holder
            passed.append(holder)
    finally:
        for each in passed:
            each.close()
    raise OSError(f"the ports {PRIVATE_PORTS.start} to {PRIVATE_PORTS.stop - 1} are reserved for the networks of jobs")


def _bound(address: Address, port: int) -> socket.socket:
    """A bound socket as JVMs create them: for both address families if the kernel has IPv6."""
    with contextlib.suppress(OSError):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            return _bind(sock, f"::ffff:{address}" if address.version == 4 else str(address), port)
        except OSError:
            sock.close()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        return _bind(sock, str(address), port)
    except OSError:
        sock.close()
        raise


def _bind(sock: socket.socket, host: str, port: int) -> socket.socket:
    # Both sockets need the option and must have the same owner. Other users cannot bind the port.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    return sock
