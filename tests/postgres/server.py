"""A PostgreSQL server for the tests: TLS 1.3 on loopback.

It admits nobody without a client certificate or a password.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import trustme

from tests.free_ports import free_port

USER = "sluice"
PASSWORD = "a password of the test"  # noqa: S105
_PROGRAMS = (Path("/usr/lib/postgresql"), Path("build/programs/postgresql/usr/lib/postgresql").absolute())
_HBA = """
local all postgres trust
hostssl sluice sluice 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
hostssl certs sluice 127.0.0.1/32 cert
"""


def programs() -> Path:
    """The directory of the newest PostgreSQL's programs."""
    found = sorted(path for place in _PROGRAMS for path in place.glob("*/bin") if (path / "initdb").exists())
    if not found:
        raise FileNotFoundError("there is no PostgreSQL; `make test-postgres` brings it")
    return found[-1]


class Server:
    """The server in ``place``; if the test runs as root, which PostgreSQL refuses, it runs as nobody."""

    def __init__(self, place: Path, ca: trustme.CA) -> None:
        self.place = place
        self.port = free_port()
        self.ca_file = place / "ca.pem"
        self.certificate_file, self.key_file = place / "client.pem", place / "client.key"
        self.password_file = place / "password"
        self._data, self._sockets = place / "data", place / "s"
        place.mkdir(mode=0o755)
        ca.cert_pem.write_to_path(self.ca_file)
        client = ca.issue_cert(common_name=USER)
        (self.certificate_file).write_bytes(b"".join(each.bytes() for each in client.cert_chain_pems))
        _write_secret(self.key_file, client.private_key_pem.bytes())
        _write_secret(self.password_file, PASSWORD.encode() + b"\n")
        server = ca.issue_cert("127.0.0.1", "localhost")
        self._certificate, self._key = place / "server.pem", place / "server.key"
        self._certificate.write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))
        _write_secret(self._key, server.private_key_pem.bytes())
        self._sockets.mkdir()
        self._as: Sequence[str] = ()
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = (
                shutil.which("setpriv") or "setpriv",
                "--reuid=nobody",
                f"--regid={nobody.pw_gid}",
                "--clear-groups",
            )
            self._data.mkdir(mode=0o700)
            for path in (self._data, self._sockets, self._key):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def make(self) -> None:
        """Create and start an empty database cluster with our user and databases."""
        self._run(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        hba = self._data / "pg_hba.conf"
        hba.write_text(_HBA)
        settings = (
            f"listen_addresses='127.0.0.1'\nport={self.port}\nunix_socket_directories='{self._sockets}'\nssl=on\n"
            f"ssl_cert_file='{self._certificate}'\nssl_key_file='{self._key}'\nssl_ca_file='{self.ca_file}'\n"
            "ssl_min_protocol_version='TLSv1.3'\nmax_connections=60\nfsync=off\n"
        )
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(settings)
        self.start()
        self.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        for database in ("sluice", "certs"):
            self.sql(f"CREATE DATABASE {database} OWNER {USER}")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._run("pg_ctl", "start", "-w", "-D", str(self._data), "-l", str(self._data / "log"))

    def stop(self, how: str = "fast") -> None:
        """Stop the server: ``fast`` in an orderly way, ``immediate`` like a crash."""
        self._run("pg_ctl", "stop", "-w", "-m", how, "-D", str(self._data))

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement as the administrator; returns its rows, ``|`` between columns."""
        arguments = ("-h", str(self._sockets), "-p", str(self.port), "-U", "postgres", "-d", database)
        return self._run("psql", *arguments, "-qtA", "-v", "ON_ERROR_STOP=1", "-c", statement).strip()

    def _run(self, program: str, *arguments: str) -> str:
        output = self.place / "output"
        # A file and not a pipe: the server that pg_ctl starts would keep a pipe open.
        with output.open("wb") as file:
            done = subprocess.run(
                [*self._as, str(programs() / program), *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=60,
                check=False,
            )
        text = output.read_text()
        assert done.returncode == 0, text[-2000:]
        return text


def _write_secret(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
