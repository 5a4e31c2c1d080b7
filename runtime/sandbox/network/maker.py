"""The program that creates a network namespace and exits. The namespace lives on in the descriptors that it returns.

It runs as ``python -I -S maker.py FD OWNER``, outside any box and without any code of a job. With OWNER ``user``, an
ordinary user creates a new user namespace as well; with ``root`` there is none. FD is a Unix socket. The program sends
over it, as SCM_RIGHTS: the network namespace, the resolver's sockets (UDP, TCP), the packet monitor's socket, and the
user namespace if there is one. On an error it sends one line of text without descriptors.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import socket
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
RESOLVER = ("127.0.0.53", 53)
PORTS = "10000 29999"
"""The range of ephemeral ports. It differs from the machine's default range, so that a private port is never the same
as a port that another process of the job has on the machine."""
SETTINGS = {
    "net/ipv4/ip_unprivileged_port_start": "0",
    "net/ipv4/ip_local_port_range": PORTS,
    "net/ipv6/ip_nonlocal_bind": "1",
    "net/ipv4/ip_nonlocal_bind": "1",
}
"""Optional sysctls of the namespace. They are skipped if ``/proc/sys`` is not writable, as in some containers."""

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
RTM_NEWROUTE = 24
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE = 0x1, 0x4, 0x400, 0x100
RT_TABLE_LOCAL, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL = 255, 3, 254, 2
RTA_OIF = 4
LOOPBACK_INDEX = 1
PF_PACKET = 17

LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Create the namespace and send its descriptors."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        fds = _make(sys.argv[2] == "user")
    except OSError as error:
        channel.send(f"{error.strerror or error}"[:400].encode())
        sys.exit(1)
    channel.sendmsg([b"made"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def new_network() -> None:
    """Move this single-threaded process and its future children into a network namespace with only loopback.

    Raises:
        OSError: the kernel refuses.
    """
    _enter_new(own_user=os.geteuid() != 0)


def _make(own_user: bool) -> list[int]:
    _enter_new(own_user)
    _route(socket.AF_INET)
    if socket.has_ipv6:
        try:  # noqa: SIM105 - contextlib takes milliseconds to load
            _route(socket.AF_INET6)
        except OSError:
            pass  # without IPv6 in the kernel, there are no IPv6 sockets either
    for name, value in SETTINGS.items():
        try:  # noqa: SIM105 - likewise
            _write(f"/proc/sys/{name}", value)
        except OSError:
            pass
    questions = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    questions.bind(RESOLVER)
    streams = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    streams.bind(RESOLVER)
    streams.listen(64)
    packets = socket.socket(PF_PACKET, socket.SOCK_DGRAM, 0)
    fds = [os.open("/proc/self/ns/net", os.O_RDONLY), *(each.detach() for each in (questions, streams, packets))]
    return [*fds, os.open("/proc/self/ns/user", os.O_RDONLY)] if own_user else fds


def _enter_new(own_user: bool) -> None:
    uid, gid = os.getuid(), os.getgid()
    _step("unshare", LIBC.unshare, ctypes.c_int(CLONE_NEWNET | (CLONE_NEWUSER if own_user else 0)))
    if own_user:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _lift_loopback()


def _lift_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
        flags = struct.unpack_from("H", request, 16)[0] | IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags))


def _route(family: int) -> None:
    """Make every address local to this namespace, so that packets to any address reach only the packet monitor."""
    route = struct.pack("=8BI", family, 0, 0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL, 0)
    attribute = struct.pack("=HHI", 8, RTA_OIF, LOOPBACK_INDEX)
    flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
    length = 16 + len(route) + len(attribute)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(struct.pack("=IHHII", length, RTM_NEWROUTE, flags, 1, 0) + route + attribute)
        error = -struct.unpack_from("=i", kernel.recv(4096), 16)[0]
    if error:
        raise OSError(error, f"route: {os.strerror(error)}")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _step(name: str, call: ctypes._NamedFuncPointer, *arguments: object) -> None:
    if call(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
