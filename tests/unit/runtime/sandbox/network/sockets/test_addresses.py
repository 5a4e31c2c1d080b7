"""Socket addresses in the kernel's memory layout."""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import ip_address

import pytest

from sluice.runtime.sandbox.network.sockets.addresses import for_family, parse


def _inet(address: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address) + bytes(8)


def _inet6(address: str, port: int) -> bytes:
    raw = socket.inet_pton(socket.AF_INET6, address)
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0) + raw + bytes(4)


@pytest.mark.parametrize(
    ("sockaddr", "family", "wanted"),
    [
        (_inet("192.0.2.1", 80), socket.AF_INET, "192.0.2.1"),
        (_inet("0.0.0.0", 80), socket.AF_INET, "127.0.0.1"),  # noqa: S104 - what connecting to it means
        (_inet6("2001:db8::1", 80), socket.AF_INET6, "2001:db8::1"),
        (_inet6("::ffff:192.0.2.1", 80), socket.AF_INET6, "192.0.2.1"),
        (_inet6("::ffff:0.0.0.0", 80), socket.AF_INET6, "127.0.0.1"),
        (_inet6("::", 80), socket.AF_INET6, "::1"),
        (_inet6("::1", 80)[:24], socket.AF_INET6, "::1"),
    ],
)
def test_different_forms_of_a_socket_address_are_parsed_to_one_address(
    sockaddr: bytes, family: int, wanted: str
) -> None:
    assert parse(sockaddr, family) == (ip_address(wanted), 80)


@pytest.mark.parametrize(
    ("sockaddr", "family", "error"),
    [
        (_inet("192.0.2.1", 80), socket.AF_INET6, errno.EAFNOSUPPORT),
        (_inet6("::1", 80), socket.AF_INET, errno.EAFNOSUPPORT),
        (_inet("192.0.2.1", 80)[:15], socket.AF_INET, errno.EINVAL),
        (_inet6("::1", 80)[:23], socket.AF_INET6, errno.EINVAL),
    ],
)
def test_an_invalid_socket_address_is_refused_with_the_errno_of_the_kernel(
    sockaddr: bytes, family: int, error: int
) -> None:
    with pytest.raises(OSError, match="Errno") as refused:
        parse(sockaddr, family)
    assert refused.value.errno == error


def test_an_ipv4_address_is_mapped_for_an_ipv6_socket_and_ipv6_is_unreachable_from_ipv4() -> None:
    assert for_family(ip_address("192.0.2.1"), 80, socket.AF_INET6) == ("::ffff:192.0.2.1", 80)
    with pytest.raises(OSError, match="Errno") as refused:
        for_family(ip_address("::1"), 80, socket.AF_INET)
    assert refused.value.errno == errno.ENETUNREACH
