"""Ways out of a sandbox, and the proof of success: an outlet outside answers everything that reaches it.

A successful call proves nothing, because inside its own network a job may send anything. Data has left only if an
outlet's answer comes back, or if the outlet received the job's mark (which the audit reports).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable

from .attempt import Run, Tried, planted, reached, refused, untried
from .kernel import NoSuchCall
from .reading import error_of, names
from .world import Target, World

OUTLET = "outlet"
"""Kind of the targets: ``HOST:PORT`` of a socket of the audit, named ``tcp4``, ``udp6`` and so on."""
GREETING = b"SLUICE-OUTLET "
"""Prefix of an outlet's answer; the nonce of the run follows."""
SECONDS = 3.0
_A_FEW_SECONDS = struct.pack("=qq", 3, 0)
"""Timeout as ``struct timeval``, for calls that Python's timeouts do not cover."""
MSG_FASTOPEN = 0x20000000
TCP_FASTOPEN_CONNECT = 30
IPPROTO_MPTCP = 262

Way = Callable[[Target, bytes], bytes]
"""Sends a mark to an outlet; returns the answer, empty for none."""


def mark(world: World, id_: str) -> bytes:
    """The mark that identifies this attempt to outlets."""
    return f"{world.nonce} {id_} {world.place}\n".encode()


def leaving(id_: str, what: str, kind: str, way: Way) -> Run:
    """An attempt to reach each outlet whose name begins with ``kind`` by ``way``."""

    def run(world: World) -> Tried:
        targets = [each for each in world.targets if each.kind == OUTLET and each.name.startswith(kind)]
        if not targets:
            return untried("no outlet is known from outside; with egress.mode = off nothing is tried")
        seen: list[str] = []
        silent = False
        for target in targets:
            try:
                answer = way(target, mark(world, id_))
            except NoSuchCall as error:
                return untried(str(error))
            except (TimeoutError, ConnectionError) as error:
                seen.append(error_of(error))
                silent = True
            except OSError as error:
                seen.append(error_of(error))
            else:
                if GREETING in answer:
                    return reached(f"{what} to {target}", "the outlet answered")
                silent = True
                seen.append("no answer of the outlet" if not answer else f"{len(answer)} bytes of somebody else")
        done, told = f"{what} to {names(targets)}", ", ".join(sorted(set(seen)))
        # The data may have arrived although no answer came: the outlet knows.
        return planted(done, told) if silent else refused(done, told)

    return run


def talked(client: socket.socket, said: bytes) -> bytes:
    """Send data, and return the answer."""
    client.settimeout(SECONDS)
    client.sendall(said)
    return client.recv(256)


def connected(family: int, address: tuple[str, int], said: bytes, *, protocol: int = 0) -> bytes:
    """Connect with TCP, or another ``protocol``."""
    with socket.socket(family, socket.SOCK_STREAM, protocol) as client:
        client.settimeout(SECONDS)
        client.connect(address)
        return talked(client, said)


def sent(family: int, address: tuple[str, int], said: bytes, *, protocol: int = 0) -> bytes:
    """Send a datagram."""
    with socket.socket(family, socket.SOCK_DGRAM, protocol) as client:
        client.settimeout(SECONDS)
        client.sendto(said, address)
        return client.recv(512)


def fast_open(target: Target, said: bytes) -> bytes:
    """Send data with the first packet, without connect()."""
    with socket.socket(socket.AF_INET) as client:
        client.settimeout(SECONDS)
        client.sendto(said, MSG_FASTOPEN, target.address)
        return client.recv(256)


def fast_open_message(target: Target, said: bytes) -> bytes:
    """Send data with the first packet by sendmsg()."""
    with socket.socket(socket.AF_INET) as client:
        client.settimeout(SECONDS)
        client.sendmsg([said], [], MSG_FASTOPEN, target.address)
        return client.recv(256)


def fast_open_connect(target: Target, said: bytes) -> bytes:
    """connect() that only remembers the address until the first write."""
    with socket.socket(socket.AF_INET) as client:
        client.settimeout(SECONDS)
        client.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        client.connect(target.address)
        return talked(client, said)


def without_waiting(target: Target, said: bytes) -> bytes:
    """connect() that answers at once, and epoll."""
    import select

    with socket.socket(socket.AF_INET) as client, select.epoll() as waiting:
        client.setblocking(False)
        client.connect_ex(target.address)
        waiting.register(client, select.EPOLLOUT)
        if not waiting.poll(SECONDS):
            raise TimeoutError
        error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        return talked(client, said)


def bound_first(target: Target, said: bytes) -> bytes:
    """Connect from a chosen port."""
    with socket.socket(socket.AF_INET) as client:
        client.settimeout(SECONDS)
        client.bind(("127.0.0.1", 0))
        client.connect(target.address)
        return talked(client, said)


def _sockaddr(address: tuple[str, int]) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(address[1]), socket.inet_aton(address[0]))


def changed_meanwhile(target: Target, said: bytes) -> bytes:
    """Change the address while it is being checked: first an own listener, then the outlet."""
    import threading

    libc = ctypes.CDLL(None, use_errno=True)
    with socket.create_server(("127.0.0.1", 0)) as own:
        own.settimeout(SECONDS)
        inside, outside = _sockaddr(own.getsockname()), _sockaddr(target.address)
        shared = ctypes.create_string_buffer(inside, len(inside))
        stop = threading.Event()

        def flip() -> None:
            while not stop.is_set():
                for each in (outside, inside):
                    ctypes.memmove(shared, each, len(each))

        flipping = threading.Thread(target=flip, daemon=True)
        flipping.start()
        try:
            for _ in range(200):
                with socket.socket(socket.AF_INET) as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _A_FEW_SECONDS)
                    if libc.connect(client.fileno(), shared, len(inside)) == 0:
                        if client.getpeername() == own.getsockname():
                            own.accept()[0].close()  # or its queue fills up, and calls wait
                            continue
                        return talked(client, said)
        finally:
            stop.set()
            flipping.join()
    raise PermissionError(1, "200 calls reached its own listener or nobody")


def another_after(target: Target, said: bytes) -> bytes:
    """Connect inside, take that back (``AF_UNSPEC``), and connect again."""
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.create_server(("127.0.0.1", 0)) as own, socket.socket(socket.AF_INET) as client:
        client.settimeout(SECONDS)
        client.connect(own.getsockname())
        nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
        if libc.connect(client.fileno(), nowhere, len(nowhere)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        client.connect(target.address)
        return talked(client, said)


def many_at_once(target: Target, said: bytes) -> bytes:
    """sendmmsg(), whose addresses no filter sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    content = ctypes.create_string_buffer(said, len(said))
    place = ctypes.create_string_buffer(_sockaddr(target.address), 16)
    vector = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(content), len(said)), 16)
    header = struct.pack("=QI4xQQQQi4xI4x", ctypes.addressof(place), 16, ctypes.addressof(vector), 1, 0, 0, 0, 0)
    messages = ctypes.create_string_buffer(header, len(header))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(SECONDS)
        if libc.sendmmsg(client.fileno(), messages, 1, 0) != 1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return client.recv(512)


def connected_datagrams(target: Target, said: bytes) -> bytes:
    """connect() of a datagram socket, and send()."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(SECONDS)
        client.connect(target.address)
        client.send(said)
        return client.recv(512)


def question(name: str, kind: int, number: int = 7) -> bytes:
    """A DNS query (RFC 1035, 4.1)."""
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def answers(response: bytes) -> int:
    """How many answers a DNS response has; 0 for an error."""
    if len(response) < 12:
        return 0
    flags, _, count = struct.unpack(">HHH", response[2:8])
    return 0 if flags & 0x000F else count


def ask_resolvers(name: str, kind: int) -> tuple[int, list[str]]:
    """Ask the resolvers that this system names; how many answers came, and what else."""
    seen, found = [], 0
    with contextlib.suppress(OSError), open("/etc/resolv.conf", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        servers = [line.split()[1] for line in file if line.startswith("nameserver ")]
        for server in servers[:3]:
            family = socket.AF_INET6 if ":" in server else socket.AF_INET
            try:
                response = sent(family, (server, 53), question(name, kind))
                found += answers(response)
                seen.append(f"code {response[3] & 15}" if len(response) > 3 else "no DNS")
            except OSError as error:
                seen.append(error_of(error))
    return found, seen
