"""Parses socket addresses in the kernel's layout."""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

from sluice.runtime.sandbox.network.events import Address

MAX_SOCKADDR_BYTES = 128
"""The size of ``struct sockaddr_storage``."""
_MIN_INET, _MIN_INET6 = 16, 24
_FAMILY = struct.Struct("=H")


def family_of(sockaddr: bytes) -> int:
    """The address family."""
    family: int = _FAMILY.unpack_from(sockaddr)[0]
    return family


def parse(sockaddr: bytes, family: int) -> tuple[Address, int]:
    """The address and port of an internet address for a socket of ``family``, normalized by :func:`plain`.

    Raises:
        OSError: EAFNOSUPPORT or EINVAL, as in the kernel.
    """
    if family_of(sockaddr) != family:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    if len(sockaddr) < (_MIN_INET if family == socket.AF_INET else _MIN_INET6):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    port = int.from_bytes(sockaddr[2:4], "big")
    if family == socket.AF_INET:
        return plain(IPv4Address(sockaddr[4:8])), port
    return plain(IPv6Address(sockaddr[8:24])), port


def plain(address: Address) -> Address:
    """Convert IPv4-mapped IPv6 to IPv4 and the unspecified address to loopback, which it means in ``connect``."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified:
        return IPv4Address("127.0.0.1") if isinstance(address, IPv4Address) else IPv6Address("::1")
    return address


def for_family(address: Address, port: int, family: int) -> tuple[str, int]:
    """``address`` for a socket of ``family``: IPv4 as IPv4-mapped IPv6 for an IPv6 socket.

    Raises:
        OSError: ENETUNREACH for an IPv6 address and an IPv4 socket.
    """
    if family == socket.AF_INET6 and isinstance(address, IPv4Address):
        return f"::ffff:{address}", port
    if family == socket.AF_INET and isinstance(address, IPv6Address):
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
    return str(address), port
