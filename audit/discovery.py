"""The listeners of a local cluster: the cluster's registry, compared with the kernel's socket table.

The registry is the set of documents that the cluster publishes below ``<home>/run`` (this module does not use the code
that writes them). :func:`reconcile` decides, without I/O.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from sluice.audit.errors import AuditError
from sluice.audit.model import Kind, Listener
from sluice.audit.sockets import KernelSocket
from sluice.core import (
    Home,
    StoreError,
    egress_endpoint,
    is_same_process,
    paths_matching,
    read_bounded,
    read_untrusted,
    socket_of,
)
from sluice.pki import Channel
from sluice.pki.ca import CaAddress, announcements

_T = TypeVar("_T")

_TRAINING = "sluice.runtime.spark.training"
MAX_REGISTRY_BYTES = 1 << 20

_JOB_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
_JOB_MAINS = ("org.apache.spark.api.python.PythonGatewayServer", "CoarseGrainedExecutorBackend")
"""Main classes of the JVMs that a job runs; each listens for its own job's processes."""
_DRIVER_MAIN = _JOB_MAINS[0]
_QUORUM = "quorum-"
"""Only the leading ZooKeeper server listens there."""
_BRIDGE_DIRECTORY = re.compile(r"sluice-jvm-[^/]+|pyspark[^/]*|spark-[^/]+")


class _JobManagerRecord(msgspec.Struct, frozen=True):
    rpc: tuple[str, int]
    blob: tuple[str, int]
    rest: str
    rest_tls: tuple[str, int] | None = None


class _ShuffleManagerRecord(msgspec.Struct, frozen=True):
    name: str
    rpc: tuple[str, int]


class _ShuffleWorkerRecord(msgspec.Struct, frozen=True):
    name: str
    data: tuple[str, int]


class _ZooKeeperRecord(msgspec.Struct, frozen=True):
    name: str
    client: tuple[str, int]
    quorum: tuple[str, int]
    election: tuple[str, int]


class _HostPort(msgspec.Struct, frozen=True):
    host: str
    port: int


class _SpecRecord(msgspec.Struct, frozen=True):
    host: str
    waited: str = ""


class _PortRecord(msgspec.Struct, frozen=True):
    port: int


class _ProcessRecord(msgspec.Struct, frozen=True):
    name: str
    pid: int
    started_at: float
    boot: str = ""
    uptime: float = 0.0


class _ClusterRecord(msgspec.Struct, frozen=True):
    launcher: _ProcessRecord
    children: tuple[_ProcessRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Listeners of a cluster, and processes whose sockets the kernel did not show."""

    listeners: tuple[Listener, ...]
    unreadable: tuple[str, ...]


def find(home: Home, speaks_tls: Callable[[tuple[str, int]], bool]) -> Found:
    """All listeners of the cluster that runs in ``home``.

    Args:
        home: of a cluster that is up.
        speaks_tls: whether the listener at an address answers a hello; used for a driver's own loopback ports.

    Raises:
        AuditError: no cluster is running there.
    """
    sockets, unreadable = kernel_sockets(home)
    return Found(reconcile(declared(home), sockets, speaks_tls), unreadable)


def declared(home: Home) -> tuple[Listener, ...]:
    """The listeners in the registry."""
    endpoints = home.run / "endpoints"
    found: list[Listener] = []
    for path in announcements(home):
        if (ca := _read(path, CaAddress)) is None:
            continue
        # The first one keeps the names from when it was the only one.
        suffix = path.stem.removeprefix("ca")
        found += [
            Listener(name=f"ca{suffix}", kind=Kind.MUTUAL, channel=Channel.CA, host=ca.mutual[0], port=ca.mutual[1]),
            Listener(
                name=f"enrolment{suffix}",
                kind=Kind.SERVER,
                channel=Channel.ENROLMENT,
                host=ca.enrolment[0],
                port=ca.enrolment[1],
            ),
        ]
        if ca.acme is not None:
            found.append(
                Listener(name="acme", kind=Kind.SERVER, channel=Channel.ACME, host=ca.acme[0], port=ca.acme[1])
            )
    found += _jobmanagers(home, endpoints)
    edge = _read(endpoints / "envoy.json", _HostPort)
    if edge is not None:
        found.append(Listener(name="edge", kind=Kind.SERVER, channel=Channel.EDGE, host=edge.host, port=edge.port))
    challenges = _read(endpoints / "acme-http.json", _HostPort)
    if challenges is not None:
        found.append(Listener(name="acme-http-01", kind=Kind.CHALLENGES, host=challenges.host, port=challenges.port))
    egress = _read(egress_endpoint(home), _HostPort)
    if egress is not None:
        found.append(
            Listener(name="egress", kind=Kind.MUTUAL, channel=Channel.EGRESS, host=egress.host, port=egress.port)
        )
    found += _relays(home)
    sockets = ["sds", "connect", "envoy-admin"]
    auth = _read(endpoints / "auth.json", _HostPort)
    if auth is None:
        # With several auth services, each reports what it gave to Envoy.
        more = sorted(path.stem.removeprefix("xds-auth") for path in home.run.glob("xds-auth-*.json"))
        sockets = [f"{name}{number}" for number in ("", *more) for name in ("auth", "xds")] + sockets
    else:
        found.append(Listener(name="auth", kind=Kind.MUTUAL, channel=Channel.AUTH, host=auth.host, port=auth.port))
    found += (Listener(name=name, kind=Kind.SOCKET, path=str(home.sockets / f"{name}.sock")) for name in sockets)
    found += _more_envoys(home)
    return (*found, *_metrics(home), *_shuffle_service(endpoints), *_zookeepers(endpoints), *_sessions(home))


def _more_envoys(home: Home) -> Iterable[Listener]:
    """Further Envoys: they share the first one's port, and have their own sockets."""
    for path in sorted((home.root / "envoys").glob("*/run/endpoints/envoy.json")):
        name = path.parents[2].name
        for what in ("sds", "envoy-admin"):
            socket = home.envoy(name).sockets / f"{what}.sock"
            yield Listener(name=f"{what}-{name}", kind=Kind.SOCKET, path=str(socket))


def _jobmanagers(home: Home, endpoints: Path) -> Iterable[Listener]:
    """The leader under plain names, and the standbys, which also listen, under their own names."""
    leading = _read(endpoints / "jobmanager.json", _JobManagerRecord)
    if leading is not None:
        yield from _of_jobmanager(leading, "")
        yield Listener(name="rest", kind=Kind.SOCKET, channel=Channel.REST, path=_below(home, leading.rest))
    for path in sorted(endpoints.glob("jobmanager-*.json")):
        record = _read(path, _JobManagerRecord)
        if record is not None and (leading is None or record.rpc != leading.rpc):
            yield from _of_jobmanager(record, path.stem.removeprefix("jobmanager"))


def _of_jobmanager(record: _JobManagerRecord, suffix: str) -> Iterable[Listener]:
    places = {"rpc": (Channel.RPC, record.rpc), "blob": (Channel.BLOB, record.blob)}
    if record.rest_tls is not None:
        places["rest-tls"] = (Channel.REST, record.rest_tls)
    for name, (channel, (host, port)) in places.items():
        yield Listener(name=f"{name}{suffix}", kind=Kind.MUTUAL, channel=channel, host=host, port=port)


def _zookeepers(endpoints: Path) -> Iterable[Listener]:
    """The ports of a ZooKeeper server: for clients, for elections, and for followers if it leads."""
    for path in sorted(endpoints.glob("zookeeper-*.json")):
        server = _read(path, _ZooKeeperRecord)
        if server is not None:
            places = {"clients-": server.client, "election-": server.election, _QUORUM: server.quorum}
            for what, (host, port) in places.items():
                yield Listener(
                    name=f"{what}{server.name}", kind=Kind.MUTUAL, channel=Channel.ZOOKEEPER, host=host, port=port
                )


def _relays(home: Home) -> Iterable[Listener]:
    """The relays of TaskManagers for connections of their jobs: local only, each protected by a capability."""
    for path in paths_matching(home.sockets, "relay-*/endpoint.json"):
        relay = _read(path, _HostPort)
        if relay is not None:
            name = path.parent.name
            yield Listener(name=name, kind=Kind.LOCAL, host=relay.host, port=relay.port)
            yield Listener(name=f"{name}-configuration", kind=Kind.SOCKET, path=str(path.with_name("relay.sock")))


def _metrics(home: Home) -> Iterable[Listener]:
    """The metrics sockets of this home's processes: exactly one for each identity."""
    for identity in sorted((home.pki / "identities").glob("*/*")):
        path = socket_of(home, f"{identity.parent.name}/{identity.name}")
        if path.exists():
            yield Listener(name=f"metrics-{identity.name}", kind=Kind.SOCKET, path=str(path))


def _shuffle_service(endpoints: Path) -> Iterable[Listener]:
    """The rpc channel of ShuffleManagers, whether they lead or not, and the data channel of ShuffleWorkers."""
    for path in sorted(endpoints.glob("shuffle-manager-*.json")):
        manager = _read(path, _ShuffleManagerRecord)
        if manager is not None:
            host, port = manager.rpc
            yield Listener(name=f"rpc-{manager.name}", kind=Kind.MUTUAL, channel=Channel.RPC, host=host, port=port)
    for path in sorted(endpoints.glob("shuffle-worker-*.json")):
        worker = _read(path, _ShuffleWorkerRecord)
        if worker is not None:
            host, port = worker.data
            yield Listener(name=f"data-{worker.name}", kind=Kind.MUTUAL, channel=Channel.DATA, host=host, port=port)


def _sessions(home: Home) -> Iterable[Listener]:
    """The Spark Connect servers of sessions, where their drivers announce them."""
    for path in paths_matching(home.root, "work/*/jobs/*/driver-*/driver.json"):
        job_id, spec = path.parents[1].name, _read(path, _SpecRecord)
        if spec is None:
            continue
        # A warm driver works in the directory in which it waited.
        work = path.parents[3] / "waiting" / spec.waited if spec.waited else path.parent
        if port := _session_port(work / "work"):
            yield Listener(
                name=f"connect-{job_id[:8]}",
                kind=Kind.MUTUAL,
                channel=Channel.CONNECT,
                host=spec.host,
                port=port,
                job_id=job_id,
            )


def _session_port(work: Path) -> int:
    """The port that the session wrote into its own, untrusted directory; 0: nothing usable."""
    try:
        data = read_untrusted(work, "connect.json", limit=MAX_REGISTRY_BYTES)
        port = msgspec.json.decode(data, type=_PortRecord).port
    except (FileNotFoundError, StoreError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return port if 0 < port < 65536 else 0


def _below(home: Home, path: str) -> str:
    """The path of a published socket as seen from here: a container's home has another path on the host."""
    return str(home.sockets / Path(path).name)


def process_id(home: Home, name: str) -> int | None:
    """The process of the cluster in ``home`` that is called ``name``; None when there is none."""
    record = _read(home.run / "cluster.json", _ClusterRecord)
    children = () if record is None else record.children
    return next((entry.pid for entry in children if entry.name == name and _alive(entry)), None)


def kernel_sockets(home: Home) -> tuple[tuple[KernelSocket, ...], tuple[str, ...]]:
    """Every listening socket of the cluster's processes and their descendants; and the unreadable processes."""
    found: dict[KernelSocket, None] = {}
    unreadable: list[str] = []
    rehearsing = _rehearsing(home)
    for name, process in processes_of(home):
        if process.pid in rehearsing:
            continue
        try:
            found |= dict.fromkeys(_sockets_of(process, name))
        except psutil.NoSuchProcess:
            continue
        except psutil.Error:
            unreadable.append(f"pid {process.pid}")
    return tuple(found), tuple(unreadable)


def _rehearsing(home: Home) -> set[int]:
    """Processes that run a trial job for the class archive, in their own temporary network.

    They have no job's code and no identity of the cluster. Only children of the launcher outside its network count,
    because jobs can choose any command line.
    """
    record = _read(home.run / "cluster.json", _ClusterRecord)
    found: set[int] = set()
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(record.launcher.pid).children() if record is not None else []
    for child in children:
        with contextlib.suppress(psutil.Error, OSError):  # one that has just ended hides no other
            if _TRAINING in child.cmdline():
                found |= _in_other_networks(child)
    return found


def _in_other_networks(process: psutil.Process) -> set[int]:
    """The descendants of a process that are not in its network namespace."""
    own, found = _network_of(process.pid), set()
    for each in process.children(recursive=True):
        with contextlib.suppress(OSError):
            if _network_of(each.pid) != own:
                found.add(each.pid)
    return found


def _network_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def processes_of(home: Home) -> tuple[tuple[str, psutil.Process], ...]:
    """The cluster's processes and their descendants, with their names in the cluster, else ""."""
    record = _read(home.run / "cluster.json", _ClusterRecord)
    roots = [] if record is None else [entry for entry in (record.launcher, *record.children) if _alive(entry)]
    if not roots:
        raise AuditError(f"no cluster is running in {home.root}", "start it: `sluice up`; or name targets: --targets")
    names = {entry.pid: entry.name for entry in roots}
    processes: dict[int, psutil.Process] = {}
    for entry in roots:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(entry.pid)
            processes |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return tuple((names.get(pid, ""), process) for pid, process in processes.items())


def _sockets_of(process: psutil.Process, name: str) -> Iterable[KernelSocket]:
    with process.oneshot():
        command = " ".join(process.cmdline())
        base = KernelSocket(name or process.name(), process.pid, command)
    for connection in process.net_connections("all"):
        if connection.family == socket.AF_UNIX:
            path = str(connection.laddr)
            if path and Path(path).is_socket():
                yield replace(base, path=path)
        elif connection.laddr and not connection.raddr:
            udp = connection.type == socket.SOCK_DGRAM
            if udp or connection.status == psutil.CONN_LISTEN:
                # The JVM's sockets show IPv4 addresses as mapped ones.
                host = connection.laddr.ip.removeprefix("::ffff:")
                yield replace(base, host=host, port=connection.laddr.port, udp=udp)


def reconcile(
    declarations: Sequence[Listener], sockets: Sequence[KernelSocket], speaks_tls: Callable[[tuple[str, int]], bool]
) -> tuple[Listener, ...]:
    """Match declared listeners with the kernel's sockets; sockets without a match are undeclared."""
    by_port = {(listener.host, listener.port): listener for listener in declarations if listener.port}
    by_path = {listener.path: listener for listener in declarations if listener.path}
    # A forked child has its parent's sockets: the first process with a socket represents all.
    distinct = {(each.path, each.host, each.port, each.udp): each for each in reversed(sockets)}
    found: dict[str, Listener] = {}
    private: set[int] = set()  # drivers whose only gateway for their Python process was found
    for each in reversed(distinct.values()):
        listener = by_path.get(each.path) if each.path else _declared_port(by_port, each)
        if listener is not None:
            bound = (*found.get(listener.name, listener).bound, each.host) if each.host else ()
            found[listener.name] = msgspec.structs.replace(listener, process=each.process, bound=bound)
            continue
        new = _of_job(each, private, speaks_tls) or _undeclared(each)
        found[_free_name(new.name, found)] = msgspec.structs.replace(new, name=_free_name(new.name, found))
    missing = {
        listener.name: listener
        for listener in declarations
        if listener.name not in found and not listener.name.startswith(_QUORUM)
    }
    return tuple(sorted({**found, **missing}.values(), key=lambda listener: (listener.kind, listener.name)))


def _declared_port(by_port: dict[tuple[str, int], Listener], found: KernelSocket) -> Listener | None:
    if found.udp:
        return None
    exact = by_port.get((found.host, found.port))
    if exact is not None or not _is_wildcard(found.host):
        return exact
    return next((listener for (_, port), listener in by_port.items() if port == found.port), None)


def _of_job(found: KernelSocket, private: set[int], speaks_tls: Callable[[tuple[str, int]], bool]) -> Listener | None:
    """A listener of a job's own JVM: of its data channel, or a driver's gateway for its own Python process."""
    if found.path:
        inside = any(_BRIDGE_DIRECTORY.fullmatch(part) for part in Path(found.path).parts)
        return Listener(name="bridge", kind=Kind.SOCKET, path=found.path, process=found.process) if inside else None
    main = next((name for name in _JOB_MAINS if name in found.command), None)
    if main is None or found.udp:
        return None
    job = _JOB_ID.search(found.command)
    listener = Listener(
        name=f"{'driver' if main == _DRIVER_MAIN else 'executor'}-{found.pid}-{found.port}",
        kind=Kind.MUTUAL,
        channel=Channel.DATA,
        host=_reachable(found.host),
        port=found.port,
        job_id=job.group() if job else "",
        process=found.process,
        bound=(found.host,),
    )
    if main == _DRIVER_MAIN and found.pid not in private and not speaks_tls(listener.address):
        private.add(found.pid)
        return msgspec.structs.replace(listener, kind=Kind.LOCAL, channel=None, name=f"py4j-{found.pid}")
    return listener


def _undeclared(found: KernelSocket) -> Listener:
    place = Path(found.path).name if found.path else f"{'udp' if found.udp else 'tcp'}-{found.port}"
    return Listener(
        name=f"{found.process}-{place}",
        kind=Kind.UNDECLARED,
        host=_reachable(found.host) if found.host else "",
        port=found.port,
        path=found.path,
        process=f"{found.process} (pid {found.pid}): {found.command[:200]}",
        bound=(found.host,) if found.host else (),
    )


def _free_name(name: str, taken: dict[str, Listener]) -> str:
    if name not in taken:
        return name
    return next(f"{name}-{number}" for number in range(2, len(taken) + 3) if f"{name}-{number}" not in taken)


def _is_wildcard(host: str) -> bool:
    return bool(host) and ipaddress.ip_address(host).is_unspecified


def _reachable(host: str) -> str:
    """An address of this machine for a listener that is bound to all addresses."""
    if not _is_wildcard(host):
        return host
    return "::1" if ":" in host else "127.0.0.1"


def _alive(entry: _ProcessRecord) -> bool:
    with contextlib.suppress(psutil.Error):
        return is_same_process(psutil.Process(entry.pid), entry.started_at, entry.boot, entry.uptime)
    return False


def _read(path: Path, kind: type[_T]) -> _T | None:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_bounded(path, MAX_REGISTRY_BYTES), type=kind)
    except (StoreError, msgspec.MsgspecError) as error:
        if not path.exists():
            return None  # its process has ended meanwhile
        raise AuditError(f"{path} cannot be read: {error}", "start the cluster again") from error
