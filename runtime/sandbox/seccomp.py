"""The filter of system calls: a program for the kernel's BPF machine (seccomp(2)).

It is made here, as a list of instructions, because there is little to it: compare a number, look at an argument,
return. What it refuses fails with an error that a program can handle. A call with a foreign ABI ends the process,
because its numbers mean something else.
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
"""TIOCSTI and TIOCLINUX: typing into the terminal of somebody else."""
PERSONALITIES = (0, 0xFFFFFFFF)
"""Linux's own, and the question which it is; others switch protections off."""
_SOCKET_TYPE = 0xF
"""The rest of the argument are flags (SOCK_CLOEXEC, SOCK_NONBLOCK)."""
FAST_OPEN = 0x20000000
"""MSG_FASTOPEN: connects while it sends."""
FAST_OPEN_CONNECT = 30
"""TCP_FASTOPEN_CONNECT: connects when something is sent."""
NEW_LISTENER = 1 << 3
"""SECCOMP_FILTER_FLAG_NEW_LISTENER."""
_ROUTING = 0
"""NETLINK_ROUTE: which addresses this machine has; needed for host names."""


def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter as an array of ``struct sock_filter``.

    Raises:
        SandboxUnavailable: nobody has written down the numbers of this processor's system calls.
    """
    return _encoded(instructions(architecture_of(machine)))


def filter_beside_network(machine: str | None = None) -> bytes:
    """The filter of a box that also has :func:`network_filter`, which refuses the rest: the kernel prefers an error to
    a question, and what is refused here nobody outside would hear of.

    Raises:
        SandboxUnavailable: nobody has written down the numbers of this processor's system calls.
    """
    return _encoded(instructions(architecture_of(machine), reported=True))


def network_filter(machine: str | None = None) -> bytes:
    """The second filter, of a box with a network of its own: a process outside makes its connections.

    Raises:
        SandboxUnavailable: nobody has written down the numbers of this processor's system calls.
    """
    return _encoded(network_instructions(architecture_of(machine)))


def architecture_of(machine: str | None = None) -> Architecture:
    """The system calls of ``machine`` (as ``uname -m``); None: of this one.

    Raises:
        SandboxUnavailable: nobody has written down its numbers.
    """
    machine = machine or platform.machine()
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        raise SandboxUnavailable(
            f"there is no filter of system calls for {machine}", f"use {' or '.join(ARCHITECTURES)}"
        )
    return architecture


def _encoded(program: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def instructions(architecture: Architecture, *, reported: bool = False) -> list[Instruction]:
    """The filter as a list; ``reported``: without what :func:`network_instructions` refuses."""
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
        # Its flags are in memory, which a filter cannot see; without it libc uses clone.
        *_equals(arch.clone3, [_refuse(errno.ENOSYS)]),
        *_equals(arch.ioctl, [_argument(1), *_refuse_values(TERMINAL_INPUT), _ALLOWED]),
        *_equals(arch.personality, [_argument(0), *_allow_values(PERSONALITIES), _refuse(errno.EPERM)]),
        *([] if reported else _ways_out(arch, _refuse)),
        _ALLOWED,
    ]


def network_instructions(architecture: Architecture) -> list[Instruction]:
    """What waits for an answer of a process outside: ``connect``, ``listen``, and what it only refuses and tells of."""
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
        # Whoever answers is outside: the kernel allows one listener for a process, and this says so sooner.
        *_equals(arch.seccomp, _if_set(1, NEW_LISTENER, _refuse(errno.EBUSY))),
        *(step for name in sorted(REPORTED_CALLS) for step in _equals(arch.denied[name], [_ASK])),
        *_ways_out(arch, lambda _: _ASK),
        _ALLOWED,
    ]


def _ways_out(arch: Architecture, refuse: Callable[[int], Instruction]) -> list[Instruction]:
    """What depends on arguments, and would lead out of a network: new namespaces, and sockets of other kinds."""
    return [
        *_equals(arch.clone, [_argument(0), (JUMP_SET, 0, 1, NEW_NAMESPACES), refuse(errno.EPERM), _ALLOWED]),
        *_equals(arch.socketpair, [_argument(0), *_allow_values([socket.AF_UNIX]), refuse(errno.EAFNOSUPPORT)]),
        *_equals(arch.socket, _socket(refuse)),
    ]


def _if_set(argument: int, bits: int, then: Instruction) -> list[Instruction]:
    return [_argument(argument), (JUMP_SET, 0, 1, bits), then, _ALLOWED]


def _socket(refuse: Callable[[int], Instruction]) -> list[Instruction]:
    """Unix sockets, TCP, UDP and the list of addresses; no raw packets, and no protocol that few people look after."""
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
    """Load the lower half of an argument; the kernel looks at no more of those that are compared here."""
    return (LOAD, 0, 0, 16 + 8 * index)


def _refuse(error: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | error)


def _equals(value: int, then: Sequence[Instruction]) -> list[Instruction]:
    """What is done if the loaded value is ``value``."""
    return [(JUMP_EQUAL, 0, len(then), value), *then]


def _allow_values(values: Sequence[int]) -> list[Instruction]:
    return [step for value in values for step in _equals(value, [_ALLOWED])]


def _refuse_values(values: Sequence[int]) -> list[Instruction]:
    return [step for value in values for step in _equals(value, [_refuse(errno.EPERM)])]
