"""Two authorities of one home under load, killed in turn, 20 times each.

All the while, processes join with tokens and renew, identities of jobs are issued, and certificates are
revoked. No client fails: one that gets no answer asks the other authority. Afterwards the ledger is intact,
contains no serial or join token twice, and contains every issued certificate. Every revoked certificate is
on the CRLs of both.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from sluice.pki.ca.address import read_cas
from sluice.pki.enrolment import client
from sluice.pki.enrolment.client import PendingKeys
from sluice.pki.enrolment.failover import Failover
from sluice.pki.enrolment.online_issuer import OnlineIssuer
from sluice.pki.errors import CaUnavailable, LedgerError, RateLimited
from sluice.pki.identities.directory import read_certificates
from sluice.pki.revocation.crl import Reason
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.csr import new_csr
from tests.authorities import Authorities, authorities, check_ledger, listed
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1700)]

KILLS = 40
NAMES = ("ca-1", "ca-2")
PATIENCE_SECONDS = 120.0
"""How long a client goes on asking: both are away only while one is killed and the other was not yet started."""


class Load:
    """Clients that run until told to stop; records what they got and what went wrong."""

    def __init__(self, pki: TestPki, running: Authorities, tmp_path: Path) -> None:
        self._running = running
        self._directories = tmp_path / "clients"
        self._clients = Failover(lambda: read_cas(pki.home))
        self._auth = pki.process(Role.AUTH)
        self._masters = [pki.process(Role.JOBMANAGER, f"jm-{number}") for number in range(2)]
        self._locate = lambda: read_cas(pki.home)
        self.stop = threading.Event()
        self.left: list[str] = []
        self.revoked: list[int] = []
        self.done: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()

    def _insist(self, what: str, ask: Callable[[], None]) -> None:
        """Call ``ask`` until an authority answers, as processes do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                ask()
            except (CaUnavailable, LedgerError) as error:
                self.repeated[f"{what}: {type(error).__name__}"] += 1
                if time.monotonic() > deadline:
                    raise
                self.stop.wait(0.05)
            except RateLimited as error:
                self.stop.wait(error.retry_after)
            else:
                self.done[what] += 1
                return

    def _note(self, directory: Path) -> None:
        self.left.append(f"{read_certificates(directory / 'chain.pem')[0].serial_number:x}")

    def has_more_than(self, count: int) -> bool:
        """Return whether more than ``count`` certificates were issued."""
        return len(self.left) > count

    def processes(self, number: int) -> None:
        """Have processes join with a token each and renew; revoke every third of them."""
        for count in itertools.count():
            if self.stop.is_set():
                return
            spiffe_id = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, f"tm-{number}-{count}")
            directory = self._directories / spiffe_id.name
            token, pending = self._running.new_token(spiffe_id), PendingKeys()

            def enrol(
                directory: Path = directory,
                token: str = token,
                spiffe_id: SpiffeId = spiffe_id,
                pending: PendingKeys = pending,
            ) -> None:
                self._clients.call(
                    lambda address: client.enrol(
                        directory, address.enrolment, token, spiffe_id.role, spiffe_id.name, pending=pending
                    )
                )

            def renew(directory: Path = directory) -> None:
                self._clients.call(lambda address: client.renew(directory, address.mutual))

            self._insist("enrolled", enrol)
            self._note(directory)
            self._insist("renewed", renew)
            self._note(directory)
            if count % 3 == 0:
                self._revoke(directory)

    def _revoke(self, directory: Path) -> None:
        serial = read_certificates(directory / "chain.pem")[0].serial_number

        def revoke() -> None:
            self._clients.call(
                lambda address: client.revoke(self._auth, address.mutual, f"{serial:x}", Reason.KEY_COMPROMISE, "ada")
            )
            self.revoked.append(serial)

        self._insist("revoked", revoke)

    def jobs(self, number: int) -> None:
        """Act as a JobManager that requests identities for the processes of its jobs."""
        issuer = OnlineIssuer(self._masters[number], self._locate)
        for count in itertools.count():
            if self.stop.is_set():
                return
            executor = SpiffeId.executor(TRUST_DOMAIN, f"{number:032x}", count)

            def ask(executor: SpiffeId = executor) -> None:
                signed = issuer.sign_csr(new_csr(executor)[1], executor)
                leaf = x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]
                self.left.append(f"{leaf.serial_number:x}")

            self._insist("issued for a job", ask)


@pytest.fixture
def pki(tmp_path: Path) -> TestPki:
    return TestPki(tmp_path)


@pytest.fixture
def running(pki: TestPki, tmp_path: Path) -> Iterator[Authorities]:
    with authorities(pki.home, tmp_path, *NAMES) as started:
        yield started


def numbers_of_lists(pki: TestPki) -> list[int]:
    """Return the number of the internal authority's latest CRL in a list, empty if there is none."""
    return [
        x509.load_pem_x509_crl(path.read_bytes()).extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        for path in pki.home.pki.glob("revocation/internal-*/crl.pem")
    ]


def test_authorities_killed_in_turn_lose_no_record_and_reuse_no_serial_number(
    pki: TestPki, running: Authorities, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = Load(pki, running, tmp_path)
    seen: list[int] = []
    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(load.processes, number) for number in range(2)]
        asking += [threads.submit(load.jobs, number) for number in range(2)]
        try:
            for kill in range(KILLS):
                name, before = NAMES[kill % 2], len(load.left)
                wait_until(partial(load.has_more_than, before + 3), "nobody gets anything", PATIENCE_SECONDS)
                assert not any(each.done() for each in asking), "a client has given up"
                running.kill(name)
                running.start(name)
                seen += numbers_of_lists(pki)
        finally:
            load.stop.set()
        for each in asking:
            each.result()
    recorded = check_ledger(pki.home)
    assert set(load.left) <= recorded.keys(), "something was handed out that the ledger does not have"
    assert len(load.left) == len(set(load.left))
    assert seen == sorted(seen), "the number of a list went back"
    asks = TlsIdentity(pki.process(Role.JOBMANAGER, "jm-9").directory)
    for address in read_cas(pki.home):
        answer = asyncio.run(client.fetch_trust(asks, address.mutual))
        assert answer.internal is not None
        assert set(load.revoked) <= listed(answer.internal.crl_pem), f"{address.name} has forgotten a revocation"
    with capsys.disabled():
        sys.stdout.write(
            f"\n{KILLS} kills; {dict(load.done)}; asked again after no answer of both: {dict(load.repeated)}; "
            f"{len(recorded)} certificates in the ledger\n"
        )
    assert load.done["enrolled"] >= KILLS / 4
    assert load.revoked
