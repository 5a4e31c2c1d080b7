"""Builds the seccomp filters: programs for the kernel's BPF machine (seccomp(2)).

The instructions are written directly, without a library, because the filters are simple: compare a number, check an
argument, return. A refused call fails with an error that a program can handle. A call with a foreign ABI kills the
process, because its numbers have other meanings.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Callable, Sequence

from sluice.runtime.sandbox.errors import SandboxUnavailable
from sluice.runtime.sandbox.syscalls import ARCHITECTURES, NEWEST_KNOWN, REPORTED_CALLS, Architecture

Instruction = tuple[int, int, int, int]
"""``code, jt, jf, k`` of ``struct sock_filter``."""

LOAD, AND, JUMP_EQUAL, JUMP_GREATER, JUMP_AT_LEAST, JUMP_SET, RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, ERRNO, USER_NOTIFY = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
NUMBER_OFFSET, ARCHITECTURE_OFFSET = 0, 4

NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which insert input into another user's terminal."""
PERSONALITIES = (0, 0xFFFFFFFF)
"""PER_LINUX, and the query of the current personality. Others disable protections."""
_SOCKET_TYPE = 0xF
"""Mask for the socket type; the other bits are flags (SOCK_CLOEXEC, SOCK_NONBLOCK)."""
FAST_OPEN = 0x20000000
"""MSG_FASTOPEN: connects and sends in one call."""
FAST_OPEN_CONNECT = 30
"""TCP_FASTOPEN_CONNECT: delays the connection until the first data is sent."""
NEW_LISTENER = 1 << 3
"""SECCOMP_FILTER_FLAG_NEW_LISTENER."""
_ROUTING = 0
"""NETLINK_ROUTE: lists the machine's addresses, which resolving host names requires."""


def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter as an array of ``struct sock_filter``.

    Raises:
        SandboxUnavailable: the processor architecture is not supported.
    """
    return _encoded(instructions(architecture_of(machine)))


def filter_beside_network(machine: str | None = None) -> bytes:
    """The filter of a box that also has :func:`network_filter`.

    It leaves out the calls that :func:`network_filter` reports. If both filters matched, the kernel would choose this
    filter's error over the other's notification, and the broker would never see the call.

    Raises:
        SandboxUnavailable: the processor architecture is not supported.
    """
    return _encoded(instructions(architecture_of(machine), reported=True))


def network_filter(machine: str | None = None) -> bytes:
    """The second filter of a box with a private network: the broker outside answers the calls that it selects.

    Raises:
        SandboxUnavailable: the processor architecture is not supported.
    """
    return _encoded(network_instructions(architecture_of(machine)))


def architecture_of(machine: str | None = None) -> Architecture:
    """The system call numbers of ``machine`` (as ``uname -m`` prints it); None: of this machine.

    Raises:
        SandboxUnavailable: the processor architecture is not supported.
    """
    machine = machine or platform.machine()
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        raise SandboxUnavailable(f"there is no seccomp filter for {machine}", f"use {' or '.join(ARCHITECTURES)}")
    return architecture


def _encoded(program: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def instructions(architecture: Architecture, *, reported: bool = False) -> list[Instruction]:
    """The filter's instructions; ``reported``: without the calls that :func:`network_instructions` reports."""
    arch = architecture
    denied = [number for name, number in arch.denied.items() if not (reported and name in REPORTED_CALLS)]
    return [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_EQUAL, 1, 0, arch.audit),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_OFFSET),
        *([(JUMP_AT_LEAST, 0, 1, arch.foreign_abi_bit), (RETURN, 0, 0, KILL_PROCESS)] if arch.foreign_abi_bit else []),
        (JUMP_GREATER, 0, 1, NEWEST_KNOWN),
        _refuse(errno.ENOSYS),
        *(step for number in sorted(denied) for step in _equals(number, [_refuse(errno.EPERM)])),
        # The flags of clone3 are in memory, which a filter cannot read. libc falls back to clone.
        *_equals(arch.clone3, [_refuse(errno.ENOSYS)]),
        *_equals(arch.ioctl, [_argument(1), *_refuse_values(TERMINAL_INPUT), _ALLOWED]),
        *_equals(arch.personality, [_argument(0), *_allow_values(PERSONALITIES), _refuse(errno.EPERM)]),
        *([] if reported else _ways_out(arch, _refuse)),
        _ALLOWED,
    ]


def network_instructions(architecture: Architecture) -> list[Instruction]:
    """The filter for calls that the broker answers: ``connect``, ``listen``, and calls that it refuses and reports."""
    arch = architecture
    option = [_argument(2), *_equals(FAST_OPEN_CONNECT, [_ASK]), _ALLOWED]
    return [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_EQUAL, 1, 0, arch.audit),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_OFFSET),
        *([(JUMP_AT_LEAST, 0, 1, arch.foreign_abi_bit), (RETURN, 0, 0, KILL_PROCESS)] if arch.foreign_abi_bit else []),
        *_equals(arch.connect, [_ASK]),
        *_equals(arch.listen, [_ASK]),
        *_equals(arch.sendto, _if_set(3, FAST_OPEN, _ASK)),
        *_equals(arch.sendmsg, _if_set(2, FAST_OPEN, _ASK)),
        *_equals(arch.sendmmsg, _if_set(3, FAST_OPEN, _ASK)),
        *_equals(arch.setsockopt, [_argument(1), *_equals(socket.IPPROTO_TCP, option), _ALLOWED]),
        # The broker already has the listener. The kernel allows only one for a process and would return EBUSY as well.
        *_equals(arch.seccomp, _if_set(1, NEW_LISTENER, _refuse(errno.EBUSY))),
        *(step for name in sorted(REPORTED_CALLS) for step in _equals(arch.denied[name], [_ASK])),
        *_ways_out(arch, lambda _: _ASK),
        _ALLOWED,
    ]


def _ways_out(arch: Architecture, refuse: Callable[[int], Instruction]) -> list[Instruction]:
    """Rules on arguments of calls that would bypass the network: new namespaces, and sockets of other kinds."""
    return [
        *_equals(arch.clone, [_argument(0), (JUMP_SET, 0, 1, NEW_NAMESPACES), refuse(errno.EPERM), _ALLOWED]),
        *_equals(arch.socketpair, [_argument(0), *_allow_values([socket.AF_UNIX]), refuse(errno.EAFNOSUPPORT)]),
        *_equals(arch.socket, _socket(refuse)),
    ]


def _if_set(argument: int, bits: int, then: Instruction) -> list[Instruction]:
    return [_argument(argument), (JUMP_SET, 0, 1, bits), then, _ALLOWED]


def _socket(refuse: Callable[[int], Instruction]) -> list[Instruction]:
    """Allow Unix sockets, TCP, UDP and the list of addresses. Refuse raw packets and rarely maintained protocols."""
    refused = refuse(errno.EPROTONOSUPPORT)
    internet = [
        _argument(1),
        (AND, 0, 0, _SOCKET_TYPE),
        *_equals(socket.SOCK_STREAM, [_argument(2), *_allow_values([0, socket.IPPROTO_TCP]), refused]),
        *_equals(socket.SOCK_DGRAM, [_argument(2), *_allow_values([0, socket.IPPROTO_UDP]), refused]),
        refused,
    ]
    return [
        _argument(0),
        *_allow_values([socket.AF_UNIX]),
        *_equals(socket.AF_INET, internet),
        *_equals(socket.AF_INET6, internet),
        *_equals(_AF_NETLINK, [_argument(2), *_allow_values([_ROUTING]), refused]),
        refuse(errno.EAFNOSUPPORT),
    ]


_AF_NETLINK = 16
_ALLOWED: Instruction = (RETURN, 0, 0, ALLOW)
_ASK: Instruction = (RETURN, 0, 0, USER_NOTIFY)


def _argument(index: int) -> Instruction:
    """Load the lower half of an argument. The kernel ignores the upper half of the arguments that are compared here."""
    return (LOAD, 0, 0, 16 + 8 * index)


def _refuse(error: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | error)


def _equals(value: int, then: Sequence[Instruction]) -> list[Instruction]:
    """Run the instructions ``then`` if the loaded value equals ``value``."""
    return [(JUMP_EQUAL, 0, len(then), value), *then]


def _allow_values(values: Sequence[int]) -> list[Instruction]:
    return [step for value in values for step in _equals(value, [_ALLOWED])]


def _refuse_values(values: Sequence[int]) -> list[Instruction]:
    return [step for value in values for step in _equals(value, [_refuse(errno.EPERM)])]
