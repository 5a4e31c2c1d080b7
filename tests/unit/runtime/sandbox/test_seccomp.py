"""The system call filter, run by a small BPF interpreter: its verdict on each call."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import functools
import itertools
import os
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.runtime.sandbox.errors import SandboxUnavailable
from sluice.runtime.sandbox.network.broker.refused_calls import refused_call
from sluice.runtime.sandbox.network.sockets import kernel
from sluice.runtime.sandbox.network.sockets.unix_sockets import SET_IDS, foreign_name
from sluice.runtime.sandbox.seccomp import (
    ALLOW,
    AND,
    ERRNO,
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    JUMP_GREATER,
    JUMP_SET,
    KILL_PROCESS,
    LOAD,
    RETURN,
    USER_NOTIFY,
    filter_beside_network,
    network_filter,
    seccomp_filter,
)
from sluice.runtime.sandbox.syscalls import ARCHITECTURES, NEWEST_KNOWN, REPORTED_CALLS

MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS."""
X86 = ARCHITECTURES["x86_64"]
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
"""The kernel's own tables, where they are installed."""


@functools.cache
def _program(make: Callable[[str], bytes], machine: str) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("=HBBI", make(machine)))


def judge(
    machine: str,
    number: int,
    *arguments: int,
    audit: int | None = None,
    make: Callable[[str], bytes] = seccomp_filter,
) -> int:
    """Return the filter's verdict on a call."""
    program = _program(make, machine)
    given = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number, audit or ARCHITECTURES[machine].audit, 0, *given)
    accumulator = position = 0
    while True:
        code, when_true, when_false, k = program[position]
        position += 1
        match code:
            case _ if code == LOAD:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case _ if code == AND:
                accumulator &= k
            case _ if code == RETURN:
                return int(k)
            case _:
                test = {
                    JUMP_EQUAL: accumulator == k,
                    JUMP_GREATER: accumulator > k,
                    JUMP_AT_LEAST: accumulator >= k,
                    JUMP_SET: bool(accumulator & k),
                }[code]
                position += when_true if test else when_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_exactly_the_denied_system_calls_are_refused(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    denied = set(architecture.denied.values())

    assert {judge(machine, number) for number in denied} == {ERRNO | errno.EPERM}
    special = {architecture.clone3, architecture.socket, architecture.socketpair}
    others = set(range(NEWEST_KNOWN + 1)) - denied - special
    assert {judge(machine, number) for number in others} == {ALLOW}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_program_is_valid_for_the_kernel(machine: str) -> None:
    program = list(struct.iter_unpack("=HBBI", seccomp_filter(machine)))

    assert len(program) < MAX_INSTRUCTIONS
    for position, (code, when_true, when_false, _) in enumerate(program):
        assert code in {LOAD, AND, RETURN, JUMP_EQUAL, JUMP_GREATER, JUMP_AT_LEAST, JUMP_SET}
        assert position + max(when_true, when_false) < len(program)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_of_a_foreign_abi_kill_the_process_and_unknown_calls_are_enosys(machine: str) -> None:
    assert judge(machine, 0, audit=0x40000003) == KILL_PROCESS  # i386
    assert judge(machine, NEWEST_KNOWN + 1) == ERRNO | errno.ENOSYS
    if machine == "x86_64":
        assert judge(machine, 0x40000000) == KILL_PROCESS  # x32


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_clone_makes_threads_and_processes_but_no_namespaces(machine: str) -> None:
    clone = ARCHITECTURES[machine].clone
    thread = 0x003D0F00
    """What glibc's pthread_create asks for."""

    assert judge(machine, clone, thread) == ALLOW
    assert judge(machine, clone, 17) == ALLOW  # SIGCHLD: fork
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert judge(machine, clone, bit | 17) == ERRNO | errno.EPERM
    assert judge(machine, ARCHITECTURES[machine].clone3) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        (socket.AF_UNIX, socket.SOCK_SEQPACKET | 0o2000000, 0),
        (socket.AF_INET, socket.SOCK_STREAM | 0o2004000, 0),
        (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP),
        (socket.AF_INET, socket.SOCK_DGRAM, 0),
        (socket.AF_INET6, socket.SOCK_DGRAM | 0o2000000, socket.IPPROTO_UDP),
        (16, socket.SOCK_RAW | 0o2000000, 0),
    ],
)
def test_socket_kinds_that_jobs_need_are_allowed(family: int, kind: int, protocol: int) -> None:
    assert judge("x86_64", X86.socket, family, kind, protocol) == ALLOW
    assert judge("aarch64", ARCHITECTURES["aarch64"].socket, family, kind, protocol) == ALLOW


@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        (socket.AF_INET6, socket.SOCK_RAW, 255),
        (socket.AF_INET, socket.SOCK_STREAM, 262),  # MPTCP
        (socket.AF_INET, socket.SOCK_STREAM, 132),  # SCTP
        (socket.AF_INET, socket.SOCK_STREAM, 2),
        (socket.AF_INET, socket.SOCK_DGRAM, 33),  # DCCP
        (17, socket.SOCK_RAW, 0),  # AF_PACKET
        (38, socket.SOCK_SEQPACKET, 0),  # AF_ALG
        (40, socket.SOCK_STREAM, 0),  # AF_VSOCK
        (44, socket.SOCK_RAW, 0),  # AF_XDP
        (16, socket.SOCK_RAW, 12),  # NETLINK_NETFILTER
        (socket.AF_INET | 1 << 31, socket.SOCK_STREAM, 0),
    ],
)
def test_other_socket_kinds_are_refused(family: int, kind: int, protocol: int) -> None:
    told = judge("x86_64", X86.socket, family, kind, protocol)

    assert told in {ERRNO | errno.EPROTONOSUPPORT, ERRNO | errno.EAFNOSUPPORT}


def test_socketpair_is_allowed_for_unix_sockets_only() -> None:
    assert judge("x86_64", X86.socketpair, socket.AF_UNIX, socket.SOCK_STREAM) == ALLOW
    assert judge("x86_64", X86.socketpair, 30, socket.SOCK_STREAM) == ERRNO | errno.EAFNOSUPPORT  # AF_TIPC


def test_the_ioctl_that_types_into_a_terminal_is_refused() -> None:
    assert judge("x86_64", X86.ioctl, 0, 0x5412) == ERRNO | errno.EPERM
    assert judge("x86_64", X86.ioctl, 0, 0x5412 | 1 << 40) == ERRNO | errno.EPERM  # the kernel looks at 32 bits
    assert judge("x86_64", X86.ioctl, 0, 0x5413) == ALLOW  # TIOCGWINSZ


def test_personality_can_be_asked_but_not_changed() -> None:
    assert judge("x86_64", X86.personality, 0xFFFFFFFF) == ALLOW
    assert judge("x86_64", X86.personality, 0x0040000) == ERRNO | errno.EPERM  # ADDR_NO_RANDOMIZE


def test_an_unknown_processor_has_no_filter() -> None:
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        seccomp_filter("riscv64")


def test_system_call_numbers_match_the_kernel_headers() -> None:
    """Where headers are installed; the common table is checked against the headers of both architectures."""
    for machine, header in HEADERS.items():
        if not header.exists():
            continue
        found = re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", header.read_text(encoding="utf-8"))
        numbers = {name: int(number) for name, number in found}
        architecture = ARCHITECTURES[machine]
        own = (field.name for field in dataclasses.fields(architecture))
        ours = {
            **architecture.denied,
            **{name: getattr(architecture, name) for name in own if name not in ("audit", "denied", "foreign_abi_bit")},
            **dict(zip(("setresgid", "setresuid", "setgroups"), SET_IDS[machine], strict=True)),
        }
        assert {name: number for name, number in ours.items() if numbers.get(name, number) != number} == {}
    assert X86.denied.keys() > ARCHITECTURES["aarch64"].denied.keys()


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_that_connect_or_listen_are_referred_to_the_broker(machine: str) -> None:
    arch = ARCHITECTURES[machine]

    def says(number: int, *arguments: int) -> int:
        return judge(machine, number, *arguments, make=network_filter)

    assert says(arch.connect, 3, 0, 16) == says(arch.listen, 3, 1) == USER_NOTIFY
    fast_open = 0x20000000
    for call, index in ((arch.sendto, 3), (arch.sendmsg, 2), (arch.sendmmsg, 3)):
        before = [0] * index
        for flags in (fast_open, fast_open | 0x4000, 0xFFFFFFFF, 1 << 40 | fast_open):
            assert says(call, *before, flags) == USER_NOTIFY
        for flags in (0, 0x4000, 0xDFFFFFFF, 1 << 61):
            assert says(call, *before, flags) == ALLOW
    assert says(arch.setsockopt, 3, socket.IPPROTO_TCP, 30) == USER_NOTIFY
    assert says(arch.setsockopt, 3, socket.IPPROTO_TCP, 23) == says(arch.setsockopt, 3, socket.SOL_SOCKET, 30) == ALLOW
    assert says(arch.seccomp, 1, 8) == says(arch.seccomp, 1, 0xFF) == ERRNO | errno.EBUSY
    assert says(arch.seccomp, 1, 1) == ALLOW
    assert judge(machine, arch.connect, audit=0x40000003, make=network_filter) == KILL_PROCESS
    if arch.foreign_abi_bit:
        assert says(arch.foreign_abi_bit | arch.connect) == KILL_PROCESS


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_network_filters_allow_nothing_more_and_report_calls_that_could_lead_out(machine: str) -> None:
    """Of two filters the kernel takes the stricter verdict: an error before a notification before allow."""
    arch = ARCHITECTURES[machine]
    namespaces = [(arch.clone, 1 << bit | 17) for bit in (17, 25, 26, 27, 28, 29, 30)]
    kinds = itertools.product(range(46), range(1, 11), (0, 1, 6, 12, 17, 58, 132, 255, 262))
    sockets = [(call, *each) for call in (arch.socket, arch.socketpair) for each in kinds]
    for number, *arguments in [*((each,) for each in range(NEWEST_KNOWN + 1)), *namespaces, *sockets]:
        alone = judge(machine, number, *arguments)
        beside = judge(machine, number, *arguments, make=filter_beside_network)
        asked = judge(machine, number, *arguments, make=network_filter)
        assert (beside == asked == ALLOW) <= (alone == ALLOW), (number, arguments)
        assert beside in {alone, ALLOW}
        if alone != ALLOW and beside == ALLOW:
            assert asked == USER_NOTIFY
    told = [arch.denied[name] for name in REPORTED_CALLS] + [arch.clone]
    for number in told:
        assert judge(machine, number, 0x10000000, make=filter_beside_network) == ALLOW
        assert judge(machine, number, 0x10000000, make=network_filter) == USER_NOTIFY


def _notified(number: int, *arguments: int) -> kernel.Notification:
    return kernel.Notification(1, os.getpid(), number, (*arguments, 0, 0, 0, 0, 0, 0)[:6])


@pytest.mark.parametrize(
    ("number", "arguments", "error", "protocol", "what"),
    [
        (X86.socket, (2, 3, 1), errno.EPROTONOSUPPORT, "raw", "socket(AF_INET, SOCK_RAW, 1)"),
        (X86.socket, (2, 2, 1), errno.EPROTONOSUPPORT, "icmp", "socket(AF_INET, SOCK_DGRAM, 1)"),
        (X86.socket, (10, 3, 255), errno.EPROTONOSUPPORT, "raw", "socket(AF_INET6, SOCK_RAW, 255)"),
        (X86.socket, (2, 1, 262), errno.EPROTONOSUPPORT, "mptcp", "socket(AF_INET, SOCK_STREAM, 262)"),
        (X86.socket, (2, 5 | 0o2000000, 132), errno.EPROTONOSUPPORT, "ip-132", "socket(AF_INET, SOCK_SEQPACKET, 132)"),
        (X86.socket, (17, 3, 768), errno.EAFNOSUPPORT, "packet", "socket(AF_PACKET, SOCK_RAW, 768)"),
        (X86.socket, (40, 1, 0), errno.EAFNOSUPPORT, "vsock", "socket(AF_VSOCK, SOCK_STREAM, 0)"),
        (X86.socket, (16, 3, 12), errno.EPROTONOSUPPORT, "netlink", "socket(AF_NETLINK, SOCK_RAW, 12)"),
        (X86.socket, (1 << 31, 15, 0), errno.EAFNOSUPPORT, "family-2147483648", "socket(2147483648, 15, 0)"),
        (X86.socketpair, (30, 1, 0), errno.EAFNOSUPPORT, "tipc", "socketpair(AF_TIPC, SOCK_STREAM, 0)"),
        (X86.clone, (1 << 30,), errno.EPERM, "call", "clone with new namespaces"),
        (X86.denied["io_uring_setup"], (), errno.EPERM, "io_uring", "io_uring_setup"),
        (X86.denied["setns"], (), errno.EPERM, "call", "setns"),
        (X86.setsockopt, (3, 6, 30), errno.ENOPROTOOPT, "fast-open", "setsockopt(TCP_FASTOPEN_CONNECT)"),
        (X86.sendto, (3, 0, 0, 1 << 29, 0, 16), errno.EOPNOTSUPP, "fast-open", "sendto(MSG_FASTOPEN)"),
        (9999, (), errno.EPERM, "call", "call 9999"),
    ],
)
def test_a_refused_call_is_recorded_with_error_protocol_and_name(
    number: int, arguments: tuple[int, ...], error: int, protocol: str, what: str
) -> None:
    told = refused_call(X86, _notified(number, *arguments))
    assert (told.error, told.protocol, told.what) == (error, protocol, what)
    assert told.address is None


@pytest.mark.parametrize(
    ("sockaddr", "wanted"),
    [
        (struct.pack("=HH4s8x", 2, socket.htons(443), bytes((192, 0, 2, 1))), ("192.0.2.1", 443)),
        (struct.pack("=HHI16sI", 10, socket.htons(53), 0, bytes(15) + b"\1", 0), ("::1", 53)),
        (struct.pack("=H", 1) + b"/run/x\0" + bytes(30), ("None", 0)),
        (struct.pack("=HH", 2, 1), ("None", 0)),
    ],
)
def test_a_refused_fast_open_send_is_recorded_with_its_address(sockaddr: bytes, wanted: tuple[str, int]) -> None:
    address = ctypes.create_string_buffer(sockaddr, len(sockaddr))
    header = ctypes.create_string_buffer(struct.pack("=QI", ctypes.addressof(address), len(sockaddr)), 12)
    place = ctypes.addressof(address)
    calls = (
        _notified(X86.sendto, 3, 0, 0, 1 << 29, place, len(sockaddr)),
        _notified(X86.sendmsg, 3, ctypes.addressof(header), 1 << 29),
        _notified(X86.sendmmsg, 3, ctypes.addressof(header), 1, 1 << 29),
    )
    for call in calls:
        told = refused_call(X86, call)
        assert (str(told.address), told.port) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (b"", ""),
        (b"\0of-another", "@of-another"),
        (b"/run/docker.sock\0", "/run/docker.sock"),
        (b"/proc/../run/docker.sock", "/proc/../run/docker.sock"),
        (b"/proc/self/cwd/own.sock", ""),
        (b"own.sock", ""),
        (b"/var/run/nscd/socket\0", ""),
        (b"/run/\xff", "/run/\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_unix_socket_outside_the_box_is_recorded_by_name(name: bytes, wanted: str) -> None:
    assert foreign_name(struct.pack("=H", socket.AF_UNIX) + name) == wanted
