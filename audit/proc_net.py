"""The kernel's socket tables of one network namespace, as a process inside shows them in ``/proc/PID/net``.

For containers, whose sockets are not in the host's tables. Parsing is separate from reading.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.audit.errors import AuditError
from sluice.audit.sockets import KernelSocket

PROC = Path("/proc")
MAX_TABLE_BYTES = 64 << 20
_LISTENING_TCP = "0A"
_UNCONNECTED_UDP = "07"
_ACCEPTS_CONNECTIONS = 0x10000
"""Flag of a listening unix socket (__SO_ACCEPTCON)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a table; ``path`` is set for unix sockets, the rest for the others."""

    inode: int
    host: str = ""
    port: int = 0
    path: str = ""
    udp: bool = False


def parse_inet(table: str, *, udp: bool) -> Iterator[Entry]:
    """Listening sockets in the text of ``tcp``, ``tcp6``, ``udp`` or ``udp6``."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != (_UNCONNECTED_UDP if udp else _LISTENING_TCP):
            continue
        address, _, port = fields[1].partition(":")
        yield Entry(int(fields[9]), _address(address), int(port, 16), udp=udp)


def _address(digits: str) -> str:
    """Decode words of 32 bits in the machine's byte order; all supported machines are little-endian."""
    raw = bytes.fromhex(digits)
    swapped = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    address = ipaddress.ip_address(swapped)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def parse_unix(table: str) -> Iterator[Entry]:
    """Listening sockets in the text of ``unix``; names in the abstract namespace begin with ``@``."""
    for line in table.splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _ACCEPTS_CONNECTIONS:
            yield Entry(int(fields[6]), path=fields[7])


def namespace_sockets(pid: int, proc: Path = PROC) -> tuple[KernelSocket, ...]:
    """Every listening socket in the network namespace of ``pid``; without owner, its process is empty and its pid 0.

    Raises:
        AuditError: the kernel does not show it.
    """
    try:
        tables = proc / str(pid) / "net"
        entries = list(_entries(tables))
        owners = _owners(proc, (proc / str(pid) / "ns" / "net").stat().st_ino)
        found = [(each, _socket(proc, each, owners.get(each.inode, 0))) for each in entries]
        # One that was closed meanwhile has no owner. By address: one that is opened again and again must not hide.
        still = {_place(each) for each in _entries(tables)}
    except OSError as error:
        raise AuditError(f"the sockets of process {pid} cannot be read: {error.strerror}", "run as root") from error
    return tuple(socket for each, socket in found if socket.pid or _place(each) in still)


def _place(entry: Entry) -> tuple[str, int, str, bool]:
    return entry.host, entry.port, entry.path, entry.udp


def _entries(tables: Path) -> Iterator[Entry]:
    for name in ("tcp", "tcp6", "udp", "udp6"):
        table = tables / name
        if table.exists():  # without IPv6 there are no such tables
            yield from parse_inet(_text(table), udp=name.startswith("udp"))
    yield from parse_unix(_text(tables / "unix"))


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_TABLE_BYTES).decode(errors="replace")


def _owners(proc: Path, namespace: int) -> dict[int, int]:
    """The process of each socket, of those inside the namespace and their descendants; none: it has ended.

    A process of a job is below a TaskManager and in a network of its own, and listens on a socket that was made for it.
    """
    parents, inside = _processes(proc, namespace)
    owners: dict[int, int] = {}
    for pid in parents:
        if inside.isdisjoint(_line(pid, parents)):
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for descriptor in (proc / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        owners.setdefault(int(target[8:-1]), pid)
    return owners


def _processes(proc: Path, namespace: int) -> tuple[dict[int, int], set[int]]:
    """The parent of each process, and which processes are in the network namespace."""
    parents: dict[int, int] = {}
    inside: set[int] = set()
    for directory in proc.iterdir():
        if not directory.name.isdecimal():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            status = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(directory.name)] = int(status[1])
            if (directory / "ns" / "net").stat().st_ino == namespace:
                inside.add(int(directory.name))
    return parents, inside


def _line(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """A process and its ancestors; the table may have a cycle if processes start and end while it is read."""
    for _ in range(len(parents)):
        yield pid
        if (pid := parents.get(pid, 0)) == 0:
            return


def _socket(proc: Path, entry: Entry, pid: int) -> KernelSocket:
    name, command = "", ""
    with contextlib.suppress(OSError):
        if pid:
            name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
            command = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
    return KernelSocket(name or "nobody", pid, command, entry.host, entry.port, entry.path, entry.udp)
