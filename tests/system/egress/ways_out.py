"""Try from one driver every way out of a box that a job's Python has. Argument: a JSON document.

Each line of output has the name of a way and its result. ``reached`` must not occur.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import ssl
import struct
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

SECONDS = 10.0
LIBC = ctypes.CDLL(None, use_errno=True)
FAST_OPEN, FAST_OPEN_CONNECT = 0x20000000, 30
NEW_NETWORK = 0x40000000
CALLS = {
    "x86_64": {"io_uring_setup": 425, "unshare": 272, "setns": 308, "clone": 56, "pidfd_getfd": 438, "bpf": 321},
    "aarch64": {"io_uring_setup": 425, "unshare": 97, "setns": 268, "clone": 220, "pidfd_getfd": 438, "bpf": 280},
}[os.uname().machine]
SOCKETS = {
    "packet": (17, 3, 768),
    "packet, cooked": (17, 2, 768),
    "vsock": (40, 1, 0),
    "netfilter": (16, 3, 12),
    "sock_diag": (16, 3, 4),
    "alg": (38, 5, 0),
    "bluetooth": (31, 3, 1),
    "tipc": (30, 1, 0),
    "can": (29, 3, 1),
    "xdp": (44, 3, 0),
    "raw icmp": (2, 3, 1),
    "raw ipv6": (10, 3, 255),
    "raw ip": (2, 3, 255),
    "ping": (2, 2, 1),
    "ping of ipv6": (10, 2, 58),
    "mptcp": (2, 1, 262),
    "sctp": (2, 1, 132),
    "dccp": (2, 6, 33),
    "udplite": (2, 2, 136),
}
"""Family, type and protocol."""
ADDRESSES = {
    "an address": (2, "192.0.2.1", 443),
    "an address of ipv6": (10, "2001:db8::1", 443),
    "ipv4 in ipv6": (10, "::ffff:192.0.2.2", 443),
    "metadata": (2, "169.254.169.254", 80),
    "metadata in decimal": (2, "2852039166", 8080),
    "metadata in hexadecimal": (2, "0xa9fea9fe", 8081),
    "metadata of ipv6": (10, "fd00:ec2::254", 80),
    "metadata of another cloud": (2, "100.100.100.200", 80),
    "a private address": (2, "10.0.0.1", 5432),
    "another private address": (2, "192.168.1.1", 22),
    "a resolver of others by tcp": (2, "192.0.2.53", 53),
    "an address that stands for no name": (2, "198.19.0.9", 443),
}
DATAGRAMS = {
    "udp": (2, "192.0.2.3", 443),
    "udp of ipv6": (10, "2001:db8::3", 443),
    "a resolver of others": (2, "192.0.2.53", 53),
    "multicast": (2, "224.0.0.251", 5353),
}
UNIX = {
    "abstract": (1, "\0sluice-of-others"),
    "abstract datagrams": (2, "\0sluice-datagrams-of-others"),
    "abstract packets": (5, "\0sluice-packets-of-others"),
    "the container engine": (1, "/run/docker.sock"),
    "the message bus": (1, "/var/run/dbus/system_bus_socket"),
}


def reached(client: socket.socket, said: bytes = b"hello\n") -> str:
    """Send ``said``; return whether anybody answers."""
    client.settimeout(SECONDS)
    client.sendall(said)
    return "reached" if client.recv(200) else "closed"


def opened(family: int, kind: int, protocol: int) -> str:
    with socket.socket(family, kind, protocol):
        return "reached"


def connected(family: int, host: str, port: int, *, waits: bool = True) -> str:
    with socket.socket(family) as client:
        client.settimeout(SECONDS if waits else 0)
        client.connect((host, port))
        return reached(client)


def sent(family: int, host: str, port: int) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(0.5)
        client.sendto(b"hello", (host, port))
        return "reached" if client.recv(200) else "closed"


def asked(name: str, kind: int, *, stream: bool = False) -> str:
    """Ask the box's resolver."""
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as client:
        client.settimeout(SECONDS)
        client.connect(("127.0.0.53", 53))
        client.sendall(struct.pack(">H", len(question)) + question if stream else question)
        answer = client.recv(512)[2 if stream else 0 :]
        flags, _, count = struct.unpack(">HHH", answer[2:8])
        return "reached" if count or not flags & 0xF else f"code {flags & 0xF}"


def called(name: str, *arguments: int) -> str:
    if LIBC.syscall(CALLS[name], *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "reached"


def first_packet(*, message: bool, host: str, port: int) -> str:
    with socket.socket() as client:
        client.settimeout(SECONDS)
        if message:
            client.sendmsg([b"hello"], [], FAST_OPEN, (host, port))
        else:
            client.sendto(b"hello", FAST_OPEN, (host, port))
        return "reached"


def first_write() -> str:
    with socket.socket() as client:
        client.setsockopt(socket.IPPROTO_TCP, FAST_OPEN_CONNECT, 1)
        return "reached"


def by_tls(host: str, port: int, server_name: str | None, authority: str) -> str:
    """Connect to an allowed host, and send ``server_name`` in the TLS handshake."""
    context = ssl.create_default_context(cafile=authority)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=server_name) as client,
    ):
        return reached(client)


def bound_again(host: str, port: int, authority: str) -> str:
    """Connect twice to a name that resolves first to an allowed address, then to another one."""
    # An answer says that the first was resolved: a connection that is closed at once may be given up before that.
    if (first := by_tls(host, port, host, authority)) != "reached":
        return f"not even the first: {first}"
    return by_tls(host, port, host, authority)


def by_http(host: str, port: int, head: str) -> str:
    """Plain HTTP through a connection to an allowed host."""
    with socket.create_connection((host, port), SECONDS) as client:
        client.settimeout(SECONDS)
        client.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
        answer = client.recv(4096)
        return "reached" if b"hello from" in answer or b" 200" in answer[:20] else answer[:20].decode("latin-1")


def kept(host: str, port: int) -> str:
    """Hold an allowed connection open until the policy changes."""
    with socket.create_connection((host, port), SECONDS) as client:
        client.settimeout(120)
        client.sendall(b"hello\n")
        print("OPEN", client.recv(200).decode(), flush=True)  # noqa: T201  a pipeline prints
        try:
            while client.recv(200):
                pass
        except OSError as error:
            return type(error).__name__
        return "closed"


def ways(told: dict[str, Any]) -> dict[str, Callable[[], str]]:
    """Return all ways out, by name."""
    tls, plain, ca = told["tls"], told["plain"], told["ca"]
    found: dict[str, Callable[[], str]] = {}
    for name, three in SOCKETS.items():
        found[f"socket: {name}"] = partial(opened, *three)
    found["socketpair: tipc"] = lambda: "reached" if socket.socketpair(30, 1) else ""
    for name, to in ADDRESSES.items():
        found[f"connect: {name}"] = partial(connected, *to)
    found["connect without waiting"] = lambda: connected(2, "192.0.2.4", 443, waits=False)
    for name, to in DATAGRAMS.items():
        found[f"datagram: {name}"] = partial(sent, *to)
    for name, (kind, place) in UNIX.items():

        def unix(kind: int = kind, place: str = place) -> str:
            with socket.socket(socket.AF_UNIX, kind) as client:
                client.connect(place)
                return "reached"

        found[f"unix: {name}"] = unix
    found["call: io_uring"] = lambda: called("io_uring_setup", 4, 0)
    found["call: unshare"] = lambda: called("unshare", NEW_NETWORK)
    found["call: setns"] = lambda: called("setns", os.open("/proc/self/ns/net", os.O_RDONLY), NEW_NETWORK)
    found["call: clone"] = lambda: called("clone", NEW_NETWORK | 17, 0, 0, 0, 0)
    found["call: pidfd_getfd"] = lambda: called("pidfd_getfd", os.pidfd_open(os.getppid()), 0, 0)
    found["call: bpf"] = lambda: called("bpf", 0, 0, 0)
    found["first packet: sendto"] = lambda: first_packet(message=False, host="192.0.2.5", port=443)
    found["first packet: sendmsg"] = lambda: first_packet(message=True, host="192.0.2.6", port=443)
    found["first packet: first write"] = first_write
    found["dns: a forbidden name"] = lambda: str(socket.getaddrinfo("forbidden.test", 443)) and "reached"
    found["dns: a tunnel in names"] = lambda: asked(f"{'a' * 60}.{'b' * 60}.t.tunnel.test", 1)
    found["dns: a tunnel in txt"] = lambda: asked("txt.tunnel.test", 16)
    found["dns: a tunnel in null"] = lambda: asked("null.tunnel.test", 10)
    found["dns: by tcp"] = lambda: asked("tcp.tunnel.test", 1, stream=True)
    found["an allowed host at another port"] = lambda: connected(2, "allowed.test", 22)
    found["a name of a private address"] = lambda: by_tls("private.suffix.test", tls, "private.suffix.test", ca)
    found["a name of a loopback address"] = lambda: by_tls("loopback.suffix.test", tls, "loopback.suffix.test", ca)
    found["a name of a metadata service"] = lambda: by_tls("metadata.suffix.test", tls, "metadata.suffix.test", ca)
    found["a name that is bound again"] = lambda: bound_again("rebound.test", tls, ca)
    found["tls for another name"] = lambda: by_tls("allowed.test", tls, "forbidden.test", ca)
    found["tls without a name"] = lambda: by_tls("nameless.test", tls, None, ca)
    found["a host header of another"] = lambda: by_http(
        "plain.test", plain, f"GET / HTTP/1.1\r\nHost: forbidden.test:{plain}"
    )
    found["a proxy for another authority"] = lambda: by_http(
        "proxy.test", plain, f"CONNECT forbidden.test:{tls} HTTP/1.1\r\nHost: forbidden.test:{tls}"
    )
    found["a whole address of another"] = lambda: by_http(
        "absolute.test", plain, f"GET http://forbidden.test:{plain}/ HTTP/1.1\r\nHost: absolute.test:{plain}"
    )
    found["a redirect to a forbidden name"] = lambda: (
        str(urllib.request.urlopen(f"http://redirect.test:{plain}/redirect", timeout=SECONDS).read()) and "reached"
    )
    found["a tunnel after the policy has changed"] = lambda: kept("kept.test", told["echo"])
    return found


def main() -> None:
    """Try all ways out; print a line for each."""
    told = json.loads(sys.argv[1])
    for name, way in ways(told).items():
        try:
            seen = way()
        except OSError as error:
            seen = f"{type(error).__name__}: {error}"
        with contextlib.suppress(BrokenPipeError):
            print("WAY", json.dumps([name, seen]), flush=True)  # noqa: T201  a pipeline prints


if __name__ == "__main__":
    main()
