"""Fixtures: an online authority that serves ACME, and the unmodified clients certbot and lego."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.records import LedgerRecord
from sluice.pki.x509.profiles import AuthorityKind
from tests.command import sluice
from tests.free_ports import free_ports
from tests.name_server import NameServer, name_server
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0
NAMES = ("www", "alpn", "mail", "kept", "shop", "other")


@dataclass(frozen=True)
class Clients:
    """The paths of the client programs."""

    certbot: str
    lego: str


@pytest.fixture(scope="session")
def clients() -> Clients:
    """Provides certbot and lego. ``make test-acme-server`` installs them; otherwise this fixture does."""
    made = subprocess.run([ROOT / "scripts" / "ensure-acme-clients"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return Clients(*made.stdout.split())


@dataclass
class Site:
    """An online authority with an ACME server, and everything that clients need to use it."""

    home: Path
    work: Path
    zone: Path
    http_port: int
    tls_port: int
    clients: Clients
    process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        """The file with the root certificate that clients trust."""
        return AuthorityStore(self.home / "pki").certificate_file(AuthorityKind.ROOT)

    @property
    def directory(self) -> str:
        """The URL of the ACME directory."""
        address = self._address()
        assert address is not None
        return f"https://{address[0]}:{address[1]}/acme/directory"

    def _address(self) -> tuple[str, int] | None:
        try:
            content = (self.home / "run" / "endpoints" / "ca.json").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(content, type=CaAddress).acme

    def start(self) -> None:
        """Start the authority, and wait until it serves ACME."""
        (self.home / "run" / "endpoints" / "ca.json").unlink(missing_ok=True)
        with (self.work / "ca.log").open("ab") as log:
            program = Path(sys.executable).parent / "sluice"
            self.process = subprocess.Popen([program, "run", "ca", "--home", self.home], stdout=log, stderr=log)

        def serves() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            return self._address() is not None

        wait_until(serves, "the ACME server is not there", DEADLINE_SECONDS)

    def stop(self) -> None:
        """Stop the authority with SIGTERM."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        """Kill the authority with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    @property
    def log(self) -> str:
        """The log of the authority."""
        return (self.work / "ca.log").read_text()

    def account(self, name: str, *names: str) -> dict[str, str]:
        """Create a key for an ACME account.

        Returns the settings in the account's file, and the path of that file as ``file``.
        """
        output = self.work / f"{name}.ini"
        made = sluice(
            "pki",
            "acme",
            "account",
            "create",
            name,
            "--names",
            ",".join(names),
            "--output",
            output,
            "--home",
            self.home,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        lines = [line.partition(" = ") for line in output.read_text().splitlines() if not line.startswith("#")]
        return {key: value for key, _, value in lines} | {"file": str(output)}

    def certbot(self, account: dict[str, str], *arguments: object, expect: int = 0) -> str:
        """Run certbot with the account's file and separate directories for each account; returns its output."""
        place = self.work / "certbot" / Path(account["file"]).stem
        command = [self.clients.certbot, *map(str, arguments), "--config", account["file"], "--non-interactive"]
        command += [f"--{kind}-dir={place / kind}" for kind in ("config", "work", "logs")]
        command += ["--agree-tos", "--register-unsafely-without-email"] if "certonly" in arguments else []
        return self._run(command, {"REQUESTS_CA_BUNDLE": str(self.root)}, expect)

    def certbot_chain(self, account: dict[str, str], name: str) -> list[x509.Certificate]:
        """Return the certificate chain that certbot has stored for ``name``."""
        path = self.work / "certbot" / Path(account["file"]).stem / "config" / "live" / name / "fullchain.pem"
        return x509.load_pem_x509_certificates(path.read_bytes())

    def lego(self, account: dict[str, str], name: str, *arguments: object, expect: int = 0) -> str:
        """Run lego for ``name``; returns its output. The last argument is the verb with its options."""
        *options, verb = arguments
        command = [self.clients.lego, "--server", self.directory, "--accept-tos", "--email", "ops@internal.example"]
        command += ["--path", str(self.lego_place(account)), "--domains", name, "--eab", "--kid", account["eab-kid"]]
        command += ["--hmac", account["eab-hmac-key"], *map(str, options), *str(verb).split()]
        environment = {
            "LEGO_CA_CERTIFICATES": str(self.root),
            "EXEC_PATH": str(self.hook("lego")),
            "EXEC_POLLING_INTERVAL": "1",
            "EXEC_PROPAGATION_TIMEOUT": "20",
        }
        return self._run(command, environment, expect)

    def lego_place(self, account: dict[str, str]) -> Path:
        """Return lego's directory for this account."""
        return self.work / "lego" / Path(account["file"]).stem

    def hook(self, kind: str) -> Path:
        """Create the program with which a client publishes TXT records in the zone; returns its path.

        ``kind`` is ``lego`` or ``certbot``.
        """
        path = self.work / f"hook-{kind}"
        script = {
            # https://go-acme.github.io/lego/dns/exec/
            "lego": 'name=${2%.}; [ "$1" = present ] && printf %s "$3" >"$ZONE/$name.$$"; exit 0',
            "certbot": 'printf %s "$CERTBOT_VALIDATION" >"$ZONE/_acme-challenge.$CERTBOT_DOMAIN.$$"',
        }[kind]
        path.write_text(f"#!/bin/sh\nZONE={self.zone}\n{script}\n")
        path.chmod(0o755)
        return path

    def issued(self) -> list[LedgerRecord]:
        """Return the ledger's records of ACME certificates, without the server's own certificate."""
        records = read_ledger(ledger_path(self.home / "pki"))
        return [each for each in records if each.requester.startswith("acme:") and each.requester != "acme:server"]

    def _run(self, command: list[str], environment: dict[str, str], expect: int) -> str:
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=90
        )
        output = done.stdout + done.stderr
        assert done.returncode == expect, f"{command[0]}: {output}\n{self.log[-4000:]}"
        return output


@pytest.fixture(scope="session")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Provides the address of a name server for ``*.internal.example``, and a directory of TXT records.

    The known names resolve to loopback, except ``metadata``, which resolves to 169.254.169.254. Each TXT record
    is a file whose name begins with the record's name.
    """
    place = tmp_path_factory.mktemp("zone")
    ready = threading.Event()
    found: list[tuple[NameServer, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with name_server() as server:
            server.names |= {f"{name}.internal.example": ("127.0.0.1",) for name in NAMES}
            server.names["metadata.internal.example"] = ("169.254.169.254",)
            server.texts = lambda name: tuple(path.read_bytes() for path in place.glob(f"{name}.[0-9]*"))
            done = asyncio.Event()
            found.append((server, asyncio.get_running_loop(), done))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(DEADLINE_SECONDS)
    server, loop, done = found[0]
    yield server.address, place
    loop.call_soon_threadsafe(done.set)
    thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, zone: tuple[str, Path], clients: Clients) -> Iterator[Site]:
    """Provides a running authority with an ACME server, one for each test module."""
    work = tmp_path_factory.mktemp("site")
    home = work / "home"
    home.mkdir(mode=0o700)
    port, http_port, tls_port = free_ports(3)
    resolver, place = zone
    (home / "sluice.toml").write_text(
        f"""
[ca.acme]
port = {port}
names = ["*.internal.example", "127.0.0.0/8"]
except_names = ["private.internal.example"]
networks = ["127.0.0.0/8"]
resolvers = ["{resolver}"]
http01_port = {http_port}
tls_alpn01_port = {tls_port}
"""
    )
    assert sluice("pki", "init", "--home", home).returncode == 0
    found = Site(Home.at(home).root, work, place, http_port, tls_port, clients)
    found.start()
    yield found
    found.stop()
