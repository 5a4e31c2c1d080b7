"""Ways out of a job: every protocol, call and notation by which data could leave it."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

from ..attempt import Group, Place, Run, Tried, add, attempt, reached, refused, untried
from ..jvm import in_jvm
from ..kernel import call
from ..leaving import (
    IPPROTO_MPTCP,
    OUTLET,
    SECONDS,
    another_after,
    ask_resolvers,
    bound_first,
    changed_meanwhile,
    connected,
    connected_datagrams,
    fast_open,
    fast_open_connect,
    fast_open_message,
    leaving,
    many_at_once,
    question,
    sent,
    talked,
    without_waiting,
)
from ..reading import error_of
from ..world import Target, World

EGRESS = Group(
    "EGR",
    severity="high",
    cwe=(923, 441),
    expected="no byte reaches the outlet, and none comes back",
    remedy='run jobs with [isolation] level = "sandbox" and [egress] mode = "enforce"',
)
_IP, _IP6 = socket.AF_INET, socket.AF_INET6
_TXT, _NULL, _A = 16, 10, 1


def _mapped(target: Target, said: bytes) -> bytes:
    host, port = target.address
    return connected(_IP6, (f"::ffff:{host}", port), said)


def _decimal(target: Target, said: bytes) -> bytes:
    host, port = target.address
    return connected(_IP, (str(int.from_bytes(socket.inet_aton(host), "big")), port), said)


def _hexadecimal(target: Target, said: bytes) -> bytes:
    host, port = target.address
    return connected(_IP, (f"0x{socket.inet_aton(host).hex()}", port), said)


def _unspecified(target: Target, said: bytes) -> bytes:
    return connected(_IP, ("0.0.0.0", target.address[1]), said)  # noqa: S104  not to listen


def _proxy(target: Target, said: bytes) -> bytes:
    """HTTP CONNECT to the proxy that the environment names."""
    found = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or ""
    host, _, port = found.rpartition("//")[2].rstrip("/").rpartition(":")
    if not host:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "no proxy is named")
    authority = "{}:{}".format(*target.address)
    with socket.create_connection((host, int(port)), SECONDS) as client:
        return talked(client, f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode() + said)


_WAYS: tuple[tuple[str, str, Callable[[Target, bytes], bytes]], ...] = (
    ("connect by IPv4", "tcp4", lambda to, said: connected(_IP, to.address, said)),
    ("connect by IPv6", "tcp6", lambda to, said: connected(_IP6, to.address, said)),
    ("connect by IPv4 in IPv6", "tcp4", _mapped),
    ("connect to an address in decimal", "tcp4", _decimal),
    ("connect to an address in hexadecimal", "tcp4", _hexadecimal),
    ("connect to the unspecified address", "tcp4", _unspecified),
    ("connect to another loopback address", "tcp-other", lambda to, said: connected(_IP, to.address, said)),
    ("connect without waiting", "tcp4", without_waiting),
    ("connect from a port of its own", "tcp4", bound_first),
    ("connect again after a connection inside", "tcp4", another_after),
    ("change the address while it is looked at", "tcp4", changed_meanwhile),
    ("connect by multipath TCP", "tcp4", lambda to, said: connected(_IP, to.address, said, protocol=IPPROTO_MPTCP)),
    ("send with the first packet (sendto)", "tcp4", fast_open),
    ("send with the first packet (sendmsg)", "tcp4", fast_open_message),
    ("connect with the first write", "tcp4", fast_open_connect),
    ("send a datagram by IPv4", "udp4", lambda to, said: sent(_IP, to.address, said)),
    ("send a datagram by IPv6", "udp6", lambda to, said: sent(_IP6, to.address, said)),
    ("send by a connected datagram socket", "udp4", connected_datagrams),
    ("send many datagrams at once", "udp4", many_at_once),
    (
        "ask a resolver of its own for TXT",
        "udp4",
        lambda to, said: sent(_IP, to.address, question("x.example", _TXT) + said),
    ),
    ("reach it through the proxy of the environment", "tcp4", _proxy),
)
for _number, (_what, _kind, _way) in enumerate(_WAYS, 1):
    _id = f"EGR-{_number:02}"
    add(_id, f"{_what} to somebody outside", EGRESS, leaving(_id, _what, _kind, _way), seconds=60)


_NOT_ENFORCED = "tried only where jobs are kept from the network: others would get what is sent"


def _is_enforced(world: World) -> bool:
    """Whether egress is enforced, so that nothing gets out: otherwise attempts would bother strangers."""
    return any(each.kind == OUTLET for each in world.targets)


def _named(id_: str, what: str, name: Callable[[World], str], kind: int) -> None:
    """An attempt to have the system's resolver carry a name out, or an answer in."""

    def run(world: World) -> Tried:
        if not _is_enforced(world):
            return untried(_NOT_ENFORCED)
        asked = name(world)
        found, seen = ask_resolvers(asked, kind)
        if not seen:
            return untried("no resolver is named")
        done = f"asked for {asked[:60]} (type {kind})"
        if not found:
            return refused(done, ", ".join(seen))
        # Names below .invalid exist nowhere (RFC 6761): a resolver that answers them asks nobody.
        if ask_resolvers(f"{world.nonce}.invalid", kind)[0]:
            return refused(done, "its answers are made up: it answers for names that exist nowhere, too")
        return reached(done, f"{found} answers")

    add(id_, what, EGRESS, run, seconds=30)


def _long_name(world: World) -> str:
    """A name as a DNS tunnel makes it, of maximum length."""
    return ".".join([world.nonce.ljust(60, "a")[:60], "b" * 60, "c" * 60, "t", "example", "com"])


_named("EGR-22", "carry data out in long names", _long_name, _A)
_named("EGR-23", "carry data in by TXT records", lambda world: f"{world.nonce}.txt.example.com", _TXT)
_named("EGR-24", "carry data in by NULL records", lambda world: f"{world.nonce}.null.example.com", _NULL)
_named("EGR-25", "resolve names of others", lambda _: "example.com", _A)


METADATA = (
    (_IP, "169.254.169.254"),
    (_IP, "2852039166"),
    (_IP, "0xa9fea9fe"),
    (_IP, "0251.0376.0251.0376"),
    (_IP6, "::ffff:169.254.169.254"),
    (_IP6, "fd00:ec2::254"),
    (_IP, "100.100.100.200"),
    (_IP, "168.63.129.16"),
)
"""Metadata services of clouds, in the notations that libraries accept."""


def _metadata(family: int, address: str) -> Run:
    def run(world: World) -> Tried:
        if not _is_enforced(world):
            return untried(_NOT_ENFORCED)
        done = f"asked http://{address}/ for metadata"
        try:
            answer = connected(family, (address, 80), b"GET / HTTP/1.0\r\nMetadata-Flavor: Google\r\n\r\n")
        except TimeoutError:
            return untried(f"{done}: nobody answered in time, and whether somebody is there is not known")
        except OSError as error:
            if error.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH}:
                return untried(f"{done}: this machine has no way there: {error_of(error)}")
            return refused(done, error_of(error))
        return reached(done, f"{len(answer)} bytes were answered") if answer else refused(done, "it was closed")

    return run


for _number, (_family, _address) in enumerate(METADATA, 26):
    add(f"EGR-{_number}", f"ask a cloud's metadata service at {_address}", EGRESS, _metadata(_family, _address),
        severity="critical", seconds=20)  # fmt: skip


def _is_outside(world: World) -> bool:
    """Whether this is the machine's own network."""
    marks = {each.mark for each in world.targets if each.kind == "network"}
    return not marks or str(Path("/proc/self/ns/net").stat().st_ino) in marks


def _opened(what: str, opened: tuple[int, int, int], packet: bytes, address: object) -> Run:
    """Nobody can answer; what is sent leaves only from the machine's own network."""

    def run(world: World) -> Tried:
        if not _is_enforced(world):
            return untried(_NOT_ENFORCED)
        try:
            with socket.socket(*opened) as client:
                client.settimeout(SECONDS)
                client.sendto(packet, address)  # type: ignore[call-overload]  # of any family
        except OSError as error:
            return refused(what, error_of(error))
        if _is_outside(world):
            return reached(what, "it was sent in the machine's own network")
        return refused(what, "it was sent in a network of its own, which leads nowhere")

    return run


_ECHO = struct.pack(">BBHHH", 8, 0, 0xF7FF, 0, 0)
add("EGR-34", "send an ICMP echo", EGRESS, _opened("ping", (_IP, 2, 1), _ECHO, ("192.0.2.1", 0)))
add("EGR-35", "send raw IP", EGRESS, _opened("a raw packet", (_IP, 3, 1), _ECHO, ("192.0.2.1", 0)))
add("EGR-36", "send whole frames", EGRESS, _opened("a frame", (17, 3, 0x0300), b"\xff" * 60, ("lo", 0)))

_TUNNELLED = question("x" * 60 + ".example.com", _TXT)
add("EGR-43", "ask a resolver of others by IPv4", EGRESS, _opened("DNS", (_IP, 2, 0), _TUNNELLED, ("192.0.2.53", 53)))
add(
    "EGR-44", "ask a resolver of others by IPv6", EGRESS, _opened("DNS", (_IP6, 2, 0), _TUNNELLED, ("2001:db8::53", 53))
)
add("EGR-45", "send to others by multicast", EGRESS, _opened("mDNS", (_IP, 2, 0), _TUNNELLED, ("224.0.0.251", 5353)))


@attempt("EGR-37", "enter the machine's network", EGRESS, severity="critical")
def _entered(_: World) -> Tried:
    errors = []
    for pid in (1, os.getppid()):
        try:
            descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                before = Path("/proc/self/ns/net").stat().st_ino
                call("setns", descriptor, 0x40000000)
                if Path("/proc/self/ns/net").stat().st_ino != before:
                    return reached(f"setns() to the network of process {pid}", "it is in another network")
            finally:
                os.close(descriptor)
        except OSError as error:
            errors.append(error_of(error))
    return refused("setns() to networks of processes in sight", ", ".join(sorted(set(errors))) or "they are its own")


@attempt("EGR-38", "make a network in which it may do everything", EGRESS)
def _made(_: World) -> Tried:
    done = "unshare(CLONE_NEWUSER | CLONE_NEWNET)"
    try:
        call("unshare", 0x10000000 | 0x40000000)
    except OSError as error:
        return refused(done, error_of(error))
    return reached(done, "the kernel did it")


@attempt("EGR-39", "speak through io_uring, which no filter sees", EGRESS)
def _ring(_: World) -> Tried:
    done = "io_uring_setup()"
    try:
        os.close(call("io_uring_setup", 4, bytes(120)))
    except OSError as error:
        return refused(done, error_of(error))
    return reached(done, "the kernel made a ring")


@attempt("EGR-40", "speak to the hypervisor", EGRESS)
def _vsock(_: World) -> Tried:
    done = "connected to the host by vsock"
    try:
        with socket.socket(40, socket.SOCK_STREAM) as client:
            client.settimeout(SECONDS)
            client.connect((2, 22))  # the host's own number, port
    except OSError as error:
        return refused(done, error_of(error))
    return reached(done, "it is connected")


@attempt("EGR-41", "send to abstract sockets of others by datagrams and packets", EGRESS)
def _abstract(world: World) -> Tried:
    targets = world.of("abstract socket")
    if not targets:
        return untried("no abstract socket is known from outside")
    errors = []
    for target in targets:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            try:
                with socket.socket(socket.AF_UNIX, kind) as client:
                    client.settimeout(SECONDS)
                    client.connect(f"\0{target.place}")
                    return reached(f"connected to the abstract socket {target}", "connected")
            except OSError as error:
                errors.append(error_of(error))
    return refused(f"connected to {len(targets)} abstract sockets", ", ".join(sorted(set(errors))))


@attempt("EGR-42", "use the way out without a certificate", EGRESS, seconds=30)
def _without_certificate(world: World) -> Tried:
    """The gateway's egress listener admits jobs only through their relay."""
    targets = [each for each in world.targets if each.kind == "port" and each.name.startswith("egress")]
    if not targets:
        return untried("no egress listener is known from outside")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    seen = []
    for target in targets:
        try:
            with socket.create_connection(target.address, SECONDS) as plain, context.wrap_socket(plain) as client:
                answer = talked(client, b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
        except OSError as error:
            seen.append(error_of(error))
            continue
        if answer:
            return reached(f"CONNECT to {target}", f"{len(answer)} bytes were answered")
        seen.append("it was closed")
    return refused(f"CONNECT to {len(targets)} listeners", ", ".join(sorted(set(seen))))


def _from_jvm(id_: str, operation: str, kind: str) -> Run:
    def run(world: World) -> Tried:
        places = [f"{each.place} {world.nonce} {id_} {world.place}" for each in world.targets
                  if each.kind == OUTLET and each.name.startswith(kind)]  # fmt: skip
        return in_jvm(world, operation, places, lambda: [(operation, places)])

    return run


_OF_JVMS = (
    ("connect from a JVM by IPv4", "leave-tcp", "tcp4"),
    ("connect from a JVM by IPv6", "leave-tcp", "tcp6"),
    ("connect from a JVM by java.nio", "leave-nio", "tcp4"),
    ("send a datagram from a JVM by IPv4", "leave-udp", "udp4"),
    ("send a datagram from a JVM by IPv6", "leave-udp", "udp6"),
)
for _number, (_what, _operation, _kind) in enumerate(_OF_JVMS, 46):
    add(f"EGR-{_number}", f"{_what} to somebody outside", EGRESS, _from_jvm(f"EGR-{_number}", _operation, _kind),
        places=(Place.DRIVER_JVM, Place.EXECUTOR_JVM), forked=False, seconds=150)  # fmt: skip
