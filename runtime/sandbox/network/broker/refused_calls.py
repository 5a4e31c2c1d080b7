"""Calls that are always refused and reported: sockets of other kinds, namespaces, io_uring, TCP Fast Open.

The filter of a box passes them to the broker only for reporting. This module cannot allow any of them.
"""

from __future__ import annotations

import errno
import functools
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.runtime.sandbox.network.events import Address
from sluice.runtime.sandbox.network.sockets import MAX_SOCKADDR_BYTES, family_of, kernel, parse
from sluice.runtime.sandbox.syscalls import Architecture

REASON = "call_refused"
FIRST_PACKET = "fast-open"
"""The protocol of rows about TCP Fast Open, which sends data with the first packet."""
_SOCKET_TYPE = 0xF
_RAW, _ICMP = 3, (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6)
_FAMILIES = {16: "netlink", 17: "packet", 30: "tipc", 31: "bluetooth", 38: "alg", 40: "vsock", 44: "xdp"}
_PROTOCOLS = {262: "mptcp"}


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """The result of a refused call: its error, and the contents of its row."""

    error: int
    protocol: str
    what: str
    """The call, as a programmer would write it."""
    address: Address | None = None
    port: int = 0


def refused_call(numbers: Architecture, call: kernel.Notification) -> RefusedCall:
    """The refusal of ``call``. Every call is refused."""
    refuse = _with_arguments(numbers).get(call.number)
    if refuse is not None:
        return refuse(call)
    name = next((name for name, number in numbers.denied.items() if number == call.number), f"call {call.number}")
    return RefusedCall(errno.EPERM, "io_uring" if name.startswith("io_uring") else "call", name)


@functools.cache
def _with_arguments(numbers: Architecture) -> Mapping[int, Callable[[kernel.Notification], RefusedCall]]:
    return {
        numbers.clone: lambda _: RefusedCall(errno.EPERM, "call", "clone with new namespaces"),
        numbers.socket: lambda call: _socket("socket", call),
        numbers.socketpair: lambda call: _socket("socketpair", call),
        numbers.setsockopt: lambda _: RefusedCall(errno.ENOPROTOOPT, FIRST_PACKET, "setsockopt(TCP_FASTOPEN_CONNECT)"),
        numbers.sendto: lambda call: _first_packet("sendto", call, call.arguments[4], call.arguments[5]),
        numbers.sendmsg: lambda call: _first_packet("sendmsg", call, *_name_of_message(call)),
        numbers.sendmmsg: lambda call: _first_packet("sendmmsg", call, *_name_of_message(call)),
    }


def _socket(name: str, call: kernel.Notification) -> RefusedCall:
    family, kind, protocol = (argument & 0xFFFFFFFF for argument in call.arguments[:3])
    kind &= _SOCKET_TYPE
    what = f"{name}({_called(socket.AddressFamily, family)}, {_called(socket.SocketKind, kind)}, {protocol})"
    if family in (socket.AF_INET, socket.AF_INET6):
        word = _PROTOCOLS.get(protocol, f"ip-{protocol}")
        word = "raw" if kind == _RAW else "icmp" if protocol in _ICMP else word
        return RefusedCall(errno.EPROTONOSUPPORT, word, what)
    word = _FAMILIES.get(family, f"family-{family}")
    return RefusedCall(errno.EPROTONOSUPPORT if word == "netlink" else errno.EAFNOSUPPORT, word, what)


def _called(kind: type[socket.AddressFamily | socket.SocketKind], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return str(number)


def _first_packet(name: str, call: kernel.Notification, place: int, length: int) -> RefusedCall:
    refusal = RefusedCall(errno.EOPNOTSUPP, FIRST_PACKET, f"{name}(MSG_FASTOPEN)")
    try:
        copy = kernel.read_memory(call.thread, place, length) if 2 <= length <= MAX_SOCKADDR_BYTES else bytes(2)
        family = family_of(copy)
        if family not in (socket.AF_INET, socket.AF_INET6):
            return refusal
        address, port = parse(copy, family)
    except OSError:  # not a readable address
        return refusal
    return RefusedCall(refusal.error, refusal.protocol, refusal.what, address, port)


def _name_of_message(call: kernel.Notification) -> tuple[int, int]:
    """The position and length of the address in the call's ``struct msghdr``."""
    try:
        place, length = struct.unpack("=QI", kernel.read_memory(call.thread, call.arguments[1], 12))
    except OSError:
        return 0, 0
    return place, length
