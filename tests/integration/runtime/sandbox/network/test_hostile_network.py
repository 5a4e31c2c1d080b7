"""A hostile program in a box with its own network tries every way around the broker's decision."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tests.integration.runtime.sandbox.network.conftest import Networked, Server, until

CALLS = """
import ctypes, errno, json, os, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
ALLOWED, FORBIDDEN = int(sys.argv[1]), int(sys.argv[2])

def inet(port, host="127.0.0.1"):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)

def connect(sock, address):
    return 0 if libc.connect(sock.fileno(), address, len(address)) == 0 else ctypes.get_errno()

def closed_by_peer():
    # a socket of the machine's network, which the server has closed: what it can still do is the question
    s = socket.create_connection(("127.0.0.1", ALLOWED))
    s.sendall(b"x")
    s.recv(100)
    s.shutdown(socket.SHUT_RDWR)
    while s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 7:
        time.sleep(0.01)
    return s

def tell(value):
    print(json.dumps(value))
"""


@pytest.fixture
def forbidden() -> Iterator[socket.socket]:
    """A server on the machine's loopback that no job may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def reached(forbidden: socket.socket) -> bool:
    """Whether anybody has connected to the forbidden server."""
    try:
        forbidden.accept()
    except BlockingIOError:
        return False
    return True


async def attempt(networked: Networked, server: Server, forbidden: socket.socket, code: str) -> object:
    """Run ``code`` with an allowed and a forbidden port, and return the JSON that it prints.

    Fails if the forbidden port is reached.
    """
    networked.allow(server)
    told = await networked.run(CALLS + code, server.port, forbidden.getsockname()[1])
    assert not reached(forbidden)
    return told


async def test_rewriting_the_address_during_the_decision_reaches_no_forbidden_port(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    networked.rules.delay_seconds = 0.005
    code = """
address = ctypes.create_string_buffer(inet(ALLOWED), 16)
stop = False
def rewrite():
    while not stop:
        ctypes.memmove(address, inet(FORBIDDEN), 16)
        ctypes.memmove(address, inet(ALLOWED), 16)
threading.Thread(target=rewrite).start()
results = []
for _ in range(100):
    with socket.socket() as s:
        results.append(0 if libc.connect(s.fileno(), address, 16) == 0 else ctypes.get_errno())
stop = True
tell(sorted(set(results)))
"""
    told = await attempt(networked, server, forbidden, code)

    assert set(told) <= {0, 111}  # type: ignore[call-overload]  # the port that is not allowed is one of the box


async def test_replacing_the_descriptor_during_the_decision_reaches_no_forbidden_port(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    networked.rules.delay_seconds = 0.002
    code = """
given = closed_by_peer()
target = socket.socket()
stop = False
def replace():
    while not stop:
        os.dup2(given.fileno(), target.fileno())
        with socket.socket() as fresh:
            os.dup2(fresh.fileno(), target.fileno())
threading.Thread(target=replace).start()
results = set()
for index in range(200):
    results.add(connect(target, inet(FORBIDDEN if index % 2 else ALLOWED)))
stop = True
tell(sorted(results))
"""
    await attempt(networked, server, forbidden, code)


async def test_a_socket_connected_by_the_broker_cannot_be_connected_elsewhere(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    code = """
results = {}
with socket.create_connection(("127.0.0.1", ALLOWED)) as s:
    results["disconnect"] = connect(s, struct.pack("=H14x", socket.AF_UNSPEC))
    results["again"] = connect(s, inet(FORBIDDEN))
s = closed_by_peer()
results["after its end"] = connect(s, inet(FORBIDDEN))
s = closed_by_peer()
results["disconnect after its end"] = connect(s, struct.pack("=H14x", socket.AF_UNSPEC))
results["then"] = connect(s, inet(FORBIDDEN))
tell(results)
"""
    told = await attempt(networked, server, forbidden, code)

    assert told == {
        "disconnect": 22,
        "again": 106,
        "after its end": 22,
        "disconnect after its end": 22,
        "then": 22,
    }


async def test_a_socket_connected_by_the_broker_cannot_listen_on_the_machine(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    code = """
s = closed_by_peer()
results = []
for _ in range(2):
    try:
        s.listen()
        results.append(0)
    except OSError as error:
        results.append(error.errno)
    try:
        s.bind(("127.0.0.1", 0))
    except OSError:
        pass
tell(results)
"""
    assert await attempt(networked, server, forbidden, code) == [22, 22]
    await until(lambda: any(each.protocol == "listen" for each in networked.rows.refusals))


async def test_sending_on_an_unconnected_socket_does_not_connect_it(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    code = """
FAST_OPEN = 0x20000000
to = ("127.0.0.1", FORBIDDEN)
results = {}
def attempt(name, how):
    for kind, make in (("fresh", socket.socket), ("given", closed_by_peer)):
        with make() as s:
            try:
                results[f"{name} {kind}"] = how(s) or 0
            except OSError as error:
                results[f"{name} {kind}"] = error.errno

class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("length", ctypes.c_uint), ("vectors", ctypes.c_void_p),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("size", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("done", ctypes.c_uint)]

def many(s):
    address = inet(FORBIDDEN)
    message = Message(address, len(address), None, 0, None, 0, FAST_OPEN, 0)
    if libc.sendmmsg(s.fileno(), ctypes.byref(message), 1, FAST_OPEN) < 0:
        raise OSError(ctypes.get_errno(), "sendmmsg")

def option(s):
    s.setsockopt(socket.IPPROTO_TCP, 30, 1)

attempt("sendto", lambda s: s.sendto(b"x", FAST_OPEN, to))
attempt("sendmsg", lambda s: s.sendmsg([b"x"], [], FAST_OPEN, to))
attempt("sendmmsg", many)
attempt("option", option)
attempt("sendto with more flags", lambda s: s.sendto(b"x", FAST_OPEN | socket.MSG_NOSIGNAL | socket.MSG_MORE, to))
tell(results)
"""
    told = await attempt(networked, server, forbidden, code)

    assert isinstance(told, dict)
    assert len(told) == 10
    assert {error for name, error in told.items() if not name.startswith("option")} == {95}
    assert {error for name, error in told.items() if name.startswith("option")} == {92}


async def test_io_uring_and_other_socket_types_are_unavailable(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    code = """
results = {"io_uring": 0 if libc.syscall(425, 8, bytes(120)) >= 0 else ctypes.get_errno()}
for name, family, kind, protocol in (
    ("mptcp", socket.AF_INET, socket.SOCK_STREAM, 262), ("sctp", socket.AF_INET, socket.SOCK_STREAM, 132),
    ("raw", socket.AF_INET, socket.SOCK_RAW, 255), ("icmp", socket.AF_INET, socket.SOCK_DGRAM, 1),
    ("packet", 17, socket.SOCK_RAW, 3), ("vsock", 40, socket.SOCK_STREAM, 0), ("smc", 43, socket.SOCK_STREAM, 0),
):
    try:
        socket.socket(family, kind, protocol).close()
        results[name] = 0
    except OSError as error:
        results[name] = error.errno
results["setns"] = 0 if libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0) == 0 else ctypes.get_errno()
results["unshare"] = 0 if libc.unshare(0x40000000) == 0 else ctypes.get_errno()
results["ptrace"] = 0 if libc.ptrace(16, 1, 0, 0) == 0 else ctypes.get_errno()
tell(results)
"""
    told = await attempt(networked, server, forbidden, code)

    assert isinstance(told, dict)
    assert 0 not in told.values(), told


async def test_a_program_cannot_install_or_take_over_a_seccomp_listener(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    code = """
import platform
code = struct.pack("=HBBI", 6, 0, 0, 0x7FC00000)
program = ctypes.create_string_buffer(code, len(code))
descriptor = struct.pack("@HxxxxxxP", 1, ctypes.addressof(program))
libc.prctl(38, 1, 0, 0, 0)
number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
listener = libc.syscall(number, 1, 8, descriptor)
error = ctypes.get_errno()
held = []
for name in os.listdir("/proc/self/fd"):
    try:
        held.append(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass  # that of the list itself
allow = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)
program = ctypes.create_string_buffer(allow, len(allow))
allowed = libc.syscall(number, 1, 0, struct.pack("@HxxxxxxP", 1, ctypes.addressof(program)))
with socket.socket() as s:
    after = connect(s, inet(FORBIDDEN))
tell([listener, error, [each for each in held if "seccomp" in each or "socket" in each], allowed, after])
"""
    assert await attempt(networked, server, forbidden, code) == [-1, 16, [], 0, 111]


async def test_child_processes_and_shared_descriptors_do_not_bypass_the_rules(
    networked: Networked, server: Server, forbidden: socket.socket
) -> None:
    code = """
import subprocess
one = "import socket, sys; s = socket.socket(); print(s.connect_ex(('127.0.0.1', int(sys.argv[1]))))"
executed = [int(subprocess.check_output([sys.executable, "-c", one, str(port)])) for port in (ALLOWED, FORBIDDEN)]

# a descriptor that goes to another process and is connected there
ours, theirs = socket.socketpair()
pid = os.fork()
if pid == 0:
    _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
    s = socket.socket(fileno=fds[0])
    theirs.send(struct.pack("=ii", connect(s, inet(FORBIDDEN)), connect(s, inet(ALLOWED))))
    os._exit(0)
given = socket.socket()
socket.send_fds(ours, [b"."], [given.fileno()])
passed = struct.unpack("=ii", ours.recv(8))
os.waitpid(pid, 0)

# a process that shares the descriptors (CLONE_FILES): vfork-like, made by hand
CLONE_FILES = 0x400
import platform
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
pid = libc.syscall(number, CLONE_FILES | 17, None, None, None, None)
if pid == 0:
    s = socket.socket(fileno=given.fileno())
    os._exit(connect(s, inet(FORBIDDEN)))
_, status = os.waitpid(pid, 0)
tell([executed, passed, os.waitstatus_to_exitcode(status)])
"""
    told = await attempt(networked, server, forbidden, code)

    assert told == [[0, 111], [111, 0], 111]


async def test_a_bomb_of_connections_harms_no_other_box(networked: Networked, server: Server) -> None:
    networked.allow(server)
    bomb = await networked.start(
        CALLS
        + """
def bomb():
    while True:
        with socket.socket() as s:
            connect(s, inet(9, "192.0.2.1"))
for _ in range(4):
    if os.fork() == 0:
        for _ in range(20):
            threading.Thread(target=bomb).start()
time.sleep(600)
""",
        1,
        2,
    )
    await until(lambda: len(networked.rows.refusals) > 2)
    code = CALLS + "tell([connect(socket.socket(), inet(ALLOWED)) for _ in range(20)])"
    assert await networked.run(code, server.port, 1) == [0] * 20
    await bomb.stop(0)
    kinds = {(each.protocol, each.address) for each in networked.rows.refusals}
    assert kinds == {("tcp", "192.0.2.1")}
    assert sum(each.count for each in networked.rows.refusals) > len(networked.rows.refusals)


async def test_no_connection_is_made_after_the_broker_is_closed(networked: Networked, server: Server) -> None:
    networked.allow(server)
    code = CALLS + (
        "first = connect(socket.socket(), inet(ALLOWED))\n"
        "print(first, flush=True)\n"
        "while (last := connect(socket.socket(), inet(ALLOWED))) == 0: time.sleep(0.01)\n"
        "print(last, flush=True)\n"
    )
    child = await networked.start(code, server.port, 1)
    await until(lambda: networked.boxes.output().startswith("0\n"))
    await asyncio.to_thread(networked.network.close)
    await child.wait()

    assert networked.boxes.output().split() == ["0", "38"], "ENOSYS"


async def test_the_namespace_shows_nothing_but_its_own_loopback(networked: Networked) -> None:
    code = """
import json, socket
with open("/proc/net/tcp") as file:
    sockets = [line.split()[1:3] for line in file][1:]
print(json.dumps([[name for _, name in socket.if_nameindex()], len(sockets)]))
"""
    with socket.create_server(("127.0.0.1", 0)):
        interfaces, sockets = await networked.run(code)

    assert interfaces == ["lo"]
    assert sockets == 1, "the resolver's"


async def test_udp_packets_go_nowhere_and_are_recorded(networked: Networked) -> None:
    code = """
import json, socket
told = []
for family, address in ((socket.AF_INET, ("192.0.2.1", 53)), (socket.AF_INET6, ("2001:db8::1", 123)),
                        (socket.AF_INET, ("198.51.100.7", 443)), (socket.AF_INET, ("255.255.255.255", 67))):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for _ in range(3):
            try:
                s.sendto(b"secret", address)
            except OSError as error:
                told.append(error.errno)
print(json.dumps(told))
"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
        outside.bind(("0.0.0.0", 0))  # noqa: S104 - to see everything
        outside.setblocking(False)
        await networked.run(code)
        with pytest.raises(BlockingIOError):
            outside.recv(100)
    wanted = {("udp", "192.0.2.1", 53), ("udp", "2001:db8::1", 123), ("udp", "198.51.100.7", 443)}
    await until(lambda: wanted <= {(each.protocol, each.address, each.port) for each in networked.rows.refusals})


async def test_floods_of_packets_and_dns_queries_harm_no_other_box(networked: Networked, server: Server) -> None:
    networked.allow(server)
    flood = await networked.start("""
import os, socket
for address in (("192.0.2.1", 9), ("127.0.0.53", 53)):
    if os.fork() == 0:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while True:
            try:
                s.sendto(bytes.fromhex("000101000001000000000000") + os.urandom(20), address)
            except OSError:
                pass
os.wait()
""")
    await until(lambda: any(each.protocol == "udp" for each in networked.rows.refusals))
    code = CALLS + "tell([connect(socket.socket(), inet(ALLOWED)) for _ in range(20)])"
    assert await networked.run(code, server.port, 1) == [0] * 20
    await flood.stop(0)
    assert len(networked.rows.refusals) < 5000
