"""``sluice run ca`` as a separate process, and its commands as an operator uses them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.pki.ca.address import CaAddress, read_ca, read_cas
from sluice.pki.enrolment.online_issuer import OnlineIssuer
from sluice.pki.errors import CaUnavailable
from sluice.pki.identities.directory import read_identity
from sluice.pki.ledger.file import Ledger, ledger_path, read_ledger
from sluice.pki.ledger.records import LedgerRecord
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.key_identifiers import fingerprint
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.waiting import until

ROOT = Path(__file__).parents[4]


@pytest.fixture
def pki(tmp_path: Path) -> TestPki:
    return TestPki(tmp_path)


StartCa = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def start_ca(pki: TestPki, tmp_path: Path) -> Iterator[StartCa]:
    """Starts ``sluice run ca``; what still runs at the end of the test is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "ca.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sluice.cli.main", "run", "ca", "--home", str(pki.home.root)],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


async def off_loop(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(sluice, *arguments, stdin=stdin)


async def address_of(pki: TestPki, process: subprocess.Popen[bytes]) -> CaAddress:
    """Wait until ``process`` listens; return its address."""

    def published() -> bool:
        assert process.poll() is None, "the CA ended"
        with contextlib.suppress(CaUnavailable):
            return read_ca(pki.home).pid == process.pid
        return False

    await until(published, "the CA did not publish its address")
    return read_ca(pki.home)


async def test_a_killed_authority_has_recorded_every_certificate_it_issued(
    pki: TestPki, start_ca: StartCa, tmp_path: Path
) -> None:
    """SIGKILL while four clients request certificates; then the authority restarts and continues."""
    process = start_ca()
    address = await address_of(pki, process)
    home = ("--home", str(pki.home.root))
    token = json.loads((await off_loop("pki", "token", "create", "taskmanager", "tm-1", "--json", *home)).stdout)[
        "token"
    ]
    enrolment = f"{address.enrolment[0]}:{address.enrolment[1]}"
    enrol = ("pki", "enrol", "taskmanager", "tm-1", "--ca", enrolment, "--token-file", "-", "--out")
    assert (await off_loop(*enrol, str(tmp_path / "tm-1"), stdin=token)).returncode == 0
    issuer = OnlineIssuer(pki.process(Role.JOBMANAGER), lambda: read_cas(pki.home), retry_seconds=0)
    left: list[str] = []

    def ask(number: int) -> None:
        executor = SpiffeId.executor(TRUST_DOMAIN, "a" * 32, number)
        with contextlib.suppress(CaUnavailable):
            while True:
                signed = issuer.sign_csr(new_csr(executor)[1], executor)
                left.append(fingerprint(x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]))

    asking = [asyncio.create_task(asyncio.to_thread(ask, number)) for number in range(4)]
    await until(lambda: len(left) >= 20, "the CA does not issue")
    process.send_signal(signal.SIGKILL)
    await asyncio.gather(*asking)
    process.wait()

    again = await address_of(pki, start_ca())
    recorded = {record.certificate for record in read_ledger(ledger_path(pki.home.pki))}
    assert set(left) <= recorded
    assert fingerprint(read_identity(tmp_path / "tm-1")[0].leaf) in recorded
    enrol = (*enrol[:5], f"{again.enrolment[0]}:{again.enrolment[1]}", *enrol[6:])
    refused = await off_loop(*enrol, str(tmp_path / "twice"), stdin=token)
    assert refused.returncode == 1
    assert "used already" in refused.stderr
    assert token not in refused.stderr
    mutual = f"{again.mutual[0]}:{again.mutual[1]}"
    kept = await off_loop("pki", "renew", str(tmp_path / "tm-1"), "--ca", mutual)
    assert (kept.returncode, kept.stdout.startswith("kept ")) == (0, True), kept.stderr
    renewed = await off_loop("pki", "renew", str(tmp_path / "tm-1"), "--ca", mutual, "--force")
    assert (renewed.returncode, renewed.stdout.startswith("renewed ")) == (0, True), renewed.stderr
    revoke = ("pki", "revoke", str(tmp_path / "tm-1"), "--reason", "key-compromise", *home)
    assert (await off_loop(*revoke)).returncode == 0
    before = read_identity(tmp_path / "tm-1")[0].leaf
    revoked = await off_loop("pki", "renew", str(tmp_path / "tm-1"), "--ca", mutual, "--force")
    assert revoked.returncode == 1, revoked.stdout
    assert read_identity(tmp_path / "tm-1")[0].leaf == before
    verified = await off_loop("pki", "ledger", "verify", *home, "--json")
    assert json.loads(verified.stdout)["records"] >= len(left) + 3


async def test_authority_without_its_key_does_not_start(pki: TestPki, start_ca: StartCa, tmp_path: Path) -> None:
    (pki.home.pki / "authorities" / "internal" / "key.pem").unlink()
    process = start_ca()
    assert await asyncio.to_thread(process.wait) == 1
    assert "the key of the internal authority is not in" in (tmp_path / "ca.log").read_text()


def test_token_is_printed_once_or_written_to_a_private_file(pki: TestPki, tmp_path: Path) -> None:
    home = ("--home", str(pki.home.root))
    printed = sluice("pki", "token", "create", "taskmanager", "tm-1", *home)
    assert printed.stdout.startswith("slj_")
    assert printed.stdout.strip() not in printed.stderr
    file = tmp_path / "token"
    written = sluice("pki", "token", "create", "taskmanager", "tm-1", "--output", str(file), *home)
    assert written.returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert "slj_" in file.read_text()
    assert "slj_" not in written.stdout + written.stderr
    assert sluice("pki", "token", "create", "taskmanager", "tm-1", "--output", str(file), *home).returncode == 2
    everything = b"".join(path.read_bytes() for path in pki.home.pki.rglob("*") if path.is_file())
    assert printed.stdout.strip().encode() not in everything
    assert file.read_bytes().strip() not in everything


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("token", "create", "ca", "ca-2"), 2),
        (("token", "create", "user", "eve"), 2),
        (("token", "create", "nobody", "x"), 2),
        (("token", "create", "taskmanager", "../x"), 2),
        (("token", "create", "taskmanager", "tm-1", "--ttl", "30d"), 2),
        (("token", "create", "taskmanager", "tm-1", "--ttl", "25h"), 2),
        (("ledger", "verify"), 1),
    ],
)
def test_invalid_pki_commands_fail_with_their_exit_code_and_create_no_token(
    arguments: tuple[str, ...], code: int, pki: TestPki
) -> None:
    done = sluice("pki", *arguments, "--home", str(pki.home.root))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert not list((pki.home.pki / "ca").glob("tokens/*.json"))


def test_verifying_a_modified_or_truncated_ledger_fails(pki: TestPki) -> None:
    path = ledger_path(pki.home.pki)
    ledger = Ledger(path, clock=utc_now)
    for number in range(3):
        ledger.append(LedgerRecord(event="issued", kind="job", identity=f"spiffe://{TRUST_DOMAIN}/{number}"))
    state = str(ledger.state)
    ledger.close()
    verify = ("pki", "ledger", "verify", "--home", str(pki.home.root), "--known", state)
    assert sluice(*verify).returncode == 0
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    assert "cut off" in sluice(*verify).stderr
    path.write_bytes(lines[0] + lines[2])
    broken = sluice(*verify)
    assert broken.returncode == 1
    assert "ledger line 2 does not follow" in broken.stderr
