"""``sluice run … --ca``: processes that enrol themselves on a machine that has only a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.identities.directory import read_identity
from sluice.pki.identities.join_tokens import mint
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.issued import issued_online
from tests.waiting import until

ROOT = Path(__file__).parents[4]
NAME = "cluster.example.org"
ANYWHERE = {"PYTHONPATH": str(ROOT), "SLUICE__GATEWAY__PORT": "0"}

Run = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
async def ca(pki: TestPki) -> AsyncIterator[CaAddress]:
    async with online_ca(pki.home, pki.config, CaConfig()) as address:
        yield address


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """The home on the joining machine."""
    return Home.at(tmp_path / "joining").create()


@pytest.fixture
def run(ca: CaAddress, home: Home, tmp_path: Path) -> Iterator[Run]:
    """Starts ``sluice run … --ca``; what still runs at the end of the test is ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        where = f"{ca.mutual[0]}:{ca.mutual[1]},{ca.enrolment[1]}"
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sluice.cli.main", "run", *arguments, "--home", str(home.root), "--ca", where],
                cwd=ROOT,
                env={key: os.environ[key] for key in ("PATH", "TMPDIR")} | ANYWHERE | environment,
                stdout=log,
                stderr=log,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(30)


def token_file(pki: TestPki, path: Path, role: Role, name: str, *dns: str, edge_server: bool = False) -> Path:
    certificate = AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL)
    spiffe_id = SpiffeId.process(TRUST_DOMAIN, role, name)
    record, text = mint(spiffe_id, certificate, dns=dns, edge_server=edge_server, now=utc_now())
    TokenStore(pki.home.pki).add(record, now=utc_now())
    write_secret(path, text.encode() + b"\n")
    return path


def issued(pki: TestPki) -> list[tuple[str, str]]:
    records = list(issued_online(pki.home.pki))
    return [(each.kind, each.identity.rsplit("/", 2)[-2]) for each in records]


async def test_a_process_joins_by_its_token_and_restarts_without_a_token(
    pki: TestPki, home: Home, run: Run, tmp_path: Path
) -> None:
    """The token file comes by the environment; it is removed after use, its token in no argument or log."""
    file = token_file(pki, tmp_path / "token", Role.AUTH, "auth-1")
    text = file.read_text().strip()
    ready = home.sockets / "auth.sock"
    process = run("auth", SLUICE_JOIN_TOKEN_FILE=str(file))
    await until(lambda: ready.exists() or process.poll() is not None, "the auth service does not start")
    assert process.poll() is None, (tmp_path / "log").read_text()
    assert not file.exists()
    assert read_identity(home.identity(Role.AUTH, "auth-1"))[0].spiffe_id.role is Role.AUTH
    await until((home.identity(Role.AUTH, "auth-1") / "crl.pem").exists, "no revocation list arrived")
    process.terminate()
    assert await asyncio.to_thread(process.wait, 30) == 0
    again = run("auth", SLUICE_JOIN_TOKEN_FILE=str(file))
    await until(lambda: ready.exists() or again.poll() is not None, "the auth service does not start again")
    assert again.poll() is None, (tmp_path / "log").read_text()
    assert issued(pki) == [("enrolment", "auth")]
    assert text.split("_")[2] not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("case", ["no token", "used", "readable by others", "for another process"])
async def test_a_process_without_a_good_token_does_not_start(
    case: str, pki: TestPki, home: Home, run: Run, tmp_path: Path
) -> None:
    name = "auth-2" if case == "for another process" else "auth-1"
    file = token_file(pki, tmp_path / "token", Role.AUTH, name)
    if case == "no token":
        file.unlink()
    elif case == "used":
        TokenStore(pki.home.pki).remove(file.read_text().split("_")[1])
    elif case == "readable by others":
        file.chmod(0o644)
    process = run("auth", "--join-token-file", str(file))
    assert await asyncio.to_thread(process.wait, 60) == 1
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "error: " in log
    assert not home.identity(Role.AUTH, "auth-1").exists()
    assert issued(pki) == []


async def test_envoy_joins_with_an_internal_and_an_edge_identity(
    pki: TestPki, home: Home, run: Run, tmp_path: Path
) -> None:
    """Publicly it presents the edge certificate that the authority signed for the names of its token."""
    auth = token_file(pki, tmp_path / "auth", Role.AUTH, "auth-1")
    service = run("auth", "--join-token-file", str(auth))
    await until(lambda: (home.sockets / "auth.sock").exists() or service.poll() is not None, "auth does not start")
    inside = token_file(pki, tmp_path / "inside", Role.GATEWAY, "envoy")
    outside = token_file(pki, tmp_path / "outside", Role.GATEWAY, "edge", NAME, edge_server=True)
    process = run(
        *("envoy", "--join-token-file", str(inside), "--edge-token-file", str(outside), "--dns", NAME),
    )
    published = home.run / "endpoints" / "envoy.json"
    await until(lambda: published.exists() or process.poll() is not None, "Envoy does not start")
    assert process.poll() is None, (tmp_path / "log").read_text()
    address = json.loads(published.read_text())
    context = ssl.create_default_context(cadata=pki_edge(pki))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def shown() -> x509.Certificate:
        with (
            contextlib.closing(socket.create_connection((address["host"], address["port"]), timeout=20)) as plain,
            context.wrap_socket(plain, server_hostname=NAME) as secured,
        ):
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")

    certificate = await asyncio.to_thread(shown)
    assert certificate == read_identity(home.identity(Role.GATEWAY, "edge"))[0].leaf
    assert issued(pki) == [("enrolment", "auth"), ("enrolment", "gateway"), ("edge-enrolment", "gateway")]
    await until((home.identity(Role.GATEWAY, "edge") / "crl.pem").exists, "no list of the edge arrived")
    assert not inside.exists()
    assert not outside.exists()


def pki_edge(pki: TestPki) -> str:
    return AuthorityStore(pki.home.pki).certificate_file(AuthorityKind.EDGE).read_text()
