"""Sockets of the cluster, of the machine and of other jobs: by path, by abstract name, and over loopback."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path

from ..attempt import Group, Run, Tried, add, attempt, reached, refused, untried
from ..reading import error_of, names
from ..world import PATTERNS, Target, World

SOCKETS = Group(
    "SOC",
    severity="critical",
    cwe=(923, 668),
    expected="no such socket in sight, or a refusal before anything is answered",
    remedy='run jobs with [isolation] level = "sandbox": a job then sees no socket but its own',
)
NETWORK = Group(
    "NET",
    severity="critical",
    cwe=(306, 923),
    expected="a handshake that ends in a refusal, because the job shows no certificate",
    remedy="report it: every listener must require a certificate of its clients",
)
SECONDS = 2.0
_MAX_ANSWER = 4096


def _connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.connect(path)
        return "connected"


def _by_path(kind: str, name: str = "") -> Run:
    """Whether a socket of this kind, whose name begins with ``name``, can be connected to."""

    def run(world: World) -> Tried:
        targets = world.of(kind, named=name) or [
            Target(kind, str(path), name, known=False) for path in _found(world, name)
        ]
        if not targets:
            return untried(f"no {kind} {name} is known from outside, and none can be found from inside")
        errors = []
        for target in targets:
            try:
                seen = _connect(target.place)
            except OSError as error:
                errors.append(error_of(error))
            else:
                return reached(f"connected to {target}", seen)
        return refused(f"connected to {names(targets)}", ", ".join(sorted(set(errors))))

    return run


def _found(world: World, name: str) -> list[Path]:
    found: list[Path] = []
    for home in world.homes() if name else ():
        for folder in ("run/sock", "run"):
            with contextlib.suppress(OSError):
                found += [path for path in (home / folder).glob(f"{name}*") if path.is_socket()]
    return found


_PATHS = (
    ("SOC-01", "REST", "rest"),
    ("SOC-02", "the auth service", "auth"),
    ("SOC-03", "the service that configures the proxy", "xds"),
    ("SOC-04", "the agent that hands out identities", "sds"),
    ("SOC-05", "the relay of Spark Connect", "connect"),
    ("SOC-06", "the proxy's administration", "envoy-admin"),
    ("SOC-07", "the metrics of the cluster", "metrics"),
)
for _id, _what, _name in _PATHS:
    add(_id, f"connect to the socket of {_what}", SOCKETS, _by_path("unix socket", _name),
        severity="medium" if _name == "metrics" else "")  # fmt: skip
add("SOC-08", "connect to sockets of another job", SOCKETS, _by_path("socket of another job"))
add("SOC-09", "connect to sockets of the machine's services", SOCKETS, _by_path("socket of the machine"),
    severity="high")  # fmt: skip


@attempt("SOC-10", "connect to abstract sockets of others", SOCKETS, severity="high")
def _abstract(world: World) -> Tried:
    targets = world.of("abstract socket")
    found = [Target("abstract socket", name, known=False) for name in _abstract_names()]
    if not targets and not found:
        return untried("there is no abstract socket to connect to")
    errors = []
    for target in [*targets, *found][:16]:
        try:
            _connect("\0" + target.place)
        except OSError as error:
            errors.append(error_of(error))
        else:
            return reached(f"connected to the abstract socket {target}", "connected")
    return refused(f"connected to abstract sockets: {names([*targets, *found])}", ", ".join(sorted(set(errors))))


def _abstract_names() -> list[str]:
    with contextlib.suppress(OSError):
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
        return sorted({line.split()[-1][1:] for line in lines if " @" in line and "@sluice-canary" not in line})[:8]
    return []


@attempt("SOC-11", "see the sockets of others in the kernel's tables", SOCKETS, severity="medium")
def _tables(world: World) -> Tried:
    """Paths of unix sockets tell where the cluster's home is. The table is that of the network."""
    targets = [*world.of("unix socket"), *world.of("socket of another job")]
    if not targets:
        return untried("no unix socket is known from outside")
    text = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    shown = [each for each in targets if each.place in text]
    if shown:
        return reached("read /proc/net/unix", f"it names {names(shown)}")
    return refused("read /proc/net/unix", f"it names none of {len(targets)} sockets")


def _anonymous(address: tuple[str, int]) -> tuple[bool, str]:
    """Whether a TLS client without a certificate is served, and what came of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(address, SECONDS) as plain, context.wrap_socket(plain) as client:
            client.settimeout(SECONDS)
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            answer = client.recv(_MAX_ANSWER)
            return bool(answer), f"{len(answer)} bytes were answered" if answer else "it closed the connection"
    except TimeoutError:
        return True, f"the connection was still open after {SECONDS:g} s"
    except ssl.SSLError as error:
        return False, f"refused: {error.reason or error}"
    except OSError as error:
        return False, error_of(error)


def _plaintext(address: tuple[str, int]) -> tuple[bool, str]:
    """Whether HTTP without TLS is served."""
    try:
        with socket.create_connection(address, SECONDS) as client:
            client.settimeout(SECONDS)
            client.sendall(b"GET /v1/overview HTTP/1.1\r\nhost: rest\r\nconnection: close\r\n\r\n")
            answer = client.recv(_MAX_ANSWER)
    except OSError as error:
        return False, error_of(error)
    if answer.startswith(b"HTTP/1.1 2"):
        return True, "an HTTP answer with status 2xx"
    return False, f"{len(answer)} bytes that are no such answer"


def _by_port(*prefixes: str, plaintext: bool = False) -> Run:
    def run(world: World) -> Tried:
        targets = world.of("port", named=prefixes)
        if not targets:
            return untried(f"no listener {' or '.join(prefixes)} is known from outside")
        seen: list[str] = []
        how = "plaintext" if plaintext else "TLS without a certificate"
        for target in targets:
            served, what = (_plaintext if plaintext else _anonymous)(target.address)
            if served:
                return reached(f"{how} to {target}", what)
            seen.append(what)
        return refused(f"{how} to {names(targets)}", ", ".join(sorted(set(seen))))

    return run


add("NET-01", "use the rpc channel without a certificate", NETWORK, _by_port("rpc"))
add("NET-02", "use the blob channel without a certificate", NETWORK, _by_port("blob"))
add("NET-03", "use the shuffle service without a certificate", NETWORK, _by_port("data"))
add("NET-04", "use the online authority without a certificate", NETWORK, _by_port("ca"))
add("NET-05", "use REST or the auth service over TLS without a certificate", NETWORK, _by_port("rest-tls", "auth"))
add("NET-06", "use ZooKeeper without a certificate", NETWORK, _by_port("clients-", "election-", "quorum-"))
add("NET-07", "use any listener of the cluster in plaintext", NETWORK,
    _by_port("rpc", "blob", "data", "ca", "rest-tls", "auth", "edge", plaintext=True), seconds=30)  # fmt: skip


@attempt("NET-08", "command another job's driver through py4j", NETWORK, severity="critical", seconds=20)
def _py4j(world: World) -> Tried:
    """The gateway of the driver's JVM is TCP on loopback; its secret must be asked for."""
    targets = world.of("port of another job", named="py4j")
    if not targets:
        return untried("no port of another job's driver is known from outside")
    seen = []
    for target in targets:
        try:
            with socket.create_connection(target.address, SECONDS) as client:
                client.settimeout(SECONDS)
                client.sendall(b"c\nz:java.lang.System\ncurrentTimeMillis\ne\n")
                answer = client.recv(_MAX_ANSWER)
        except OSError as error:
            seen.append(error_of(error))
            continue
        if answer.startswith(b"!y"):
            return reached(f"sent a command of py4j to {target}", "it was carried out without a secret")
        seen.append("asked for its secret" if answer.startswith(b"!x") else f"{len(answer)} bytes that are no result")
    return refused(f"sent a command of py4j to {names(targets)}", ", ".join(sorted(set(seen))))


@attempt("NET-09", "use the data channel of another job without a certificate", NETWORK, seconds=30)
def _data_channel(world: World) -> Tried:
    targets = world.of("port of another job")
    if not targets:
        return untried("no port of another job is known from outside")
    seen = []
    for target in targets:
        served, what = _anonymous(target.address)
        if served and "still open" not in what:
            return reached(f"TLS without a certificate to {target}", what)
        seen.append(what)
    return refused(f"TLS without a certificate to {names(targets)}", ", ".join(sorted(set(seen))))


PATTERNS.setdefault("unix socket", ())
