"""Starts, stops and kills the authority processes of a home (``sluice run ca --name …``), and checks their results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress, read_cas
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.errors import CaUnavailable
from sluice.pki.identities.join_tokens import mint
from sluice.pki.ledger.file import ledger_path, read_ledger, verify_ledger
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.command import sluice
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent
START_SECONDS = 90.0


class Authorities:
    """The authority processes of one home."""

    def __init__(self, home: Home, log: Path) -> None:
        self.home = home
        self._log = log
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, *names: str) -> None:
        """Start authorities, and return when all of them accept requests."""
        for name in names:
            self.begin(name)
        for name in names:
            self.address(name)

    def begin(self, name: str) -> subprocess.Popen[bytes]:
        """Start one authority without waiting for it."""
        with (self._log / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sluice.cli.main", "run", "ca", "--name", name, "--home", str(self.home.root)],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        self._all.append(process)
        self._running[name] = process
        return process

    def address(self, name: str) -> CaAddress:
        """Wait until this authority listens, and return its address."""
        process = self._running[name]

        def published() -> CaAddress | None:
            assert process.poll() is None, (self._log / f"{name}.log").read_text()
            with contextlib.suppress(CaUnavailable):
                return next((each for each in read_cas(self.home) if each.pid == process.pid), None)
            return None

        found = wait_until(published, f"{name} does not come up", START_SECONDS)
        assert found is not None
        return found

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP or SIGCONT."""
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Kill an authority with SIGKILL, and wait for its end."""
        process = self._running.pop(name)
        self._all.remove(process)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Kill all running authorities."""
        for process in self._all:
            process.kill()
            process.wait()

    def new_token(self, spiffe_id: SpiffeId) -> str:
        """Create a join token."""
        now = utc_now()
        record, token = mint(spiffe_id, AuthorityStore(self.home.pki).certificate(AuthorityKind.INTERNAL), now=now)
        TokenStore(self.home.pki).add(record, now=now)
        return token

    def log_of(self, name: str) -> str:
        """Return the log of an authority."""
        return (self._log / f"{name}.log").read_text()


@contextlib.contextmanager
def authorities(home: Home, log: Path, *names: str) -> Iterator[Authorities]:
    """Run these authorities within the block, and kill them at the end."""
    running = Authorities(home, log)
    try:
        running.start(*names)
        yield running
    finally:
        running.close()


def check_ledger(home: Home) -> dict[str, str]:
    """Check that the chain is intact and that no serial number or token was used twice.

    Returns the fingerprint of each certificate by serial number.
    """
    verified = sluice("pki", "ledger", "verify", "--json", "--home", home.root)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["records"] == verify_ledger(ledger_path(home.pki)).count
    records = [each for each in read_ledger(ledger_path(home.pki)) if each.event == "issued"]
    serials = Counter(each.serial for each in records)
    assert {serial: count for serial, count in serials.items() if count > 1} == {}, "a serial number twice"
    tokens = Counter(each.token for each in records if each.token)
    assert {token: count for token, count in tokens.items() if count > 1} == {}, "a join token twice"
    return {each.serial: each.certificate for each in records}


def listed(crl_pem: str) -> set[int]:
    """Return the serial numbers in the CRLs of this PEM."""
    parts = crl_pem.split("-----END X509 CRL-----")[:-1]
    lists = [x509.load_pem_x509_crl((each + "-----END X509 CRL-----\n").encode()) for each in parts]
    return {entry.serial_number for each in lists for entry in each}
