"""Two ``sluice run ca`` in one home.

Both answer, what one has done counts for both, and either may be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.home import Home
from sluice.pki.authorities.rotation_phases import Phase
from sluice.pki.authorities.rotation_store import RotationStore
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress, read_cas
from sluice.pki.ca.protocol import JOB_PATH, JobRequest, TrustRequest
from sluice.pki.enrolment import client
from sluice.pki.enrolment.client import PendingKeys
from sluice.pki.enrolment.exchange import call, mutual_context
from sluice.pki.enrolment.failover import Failover
from sluice.pki.enrolment.online_issuer import OnlineIssuer
from sluice.pki.enrolment.online_tokens import OnlineTokens
from sluice.pki.errors import EnrolmentRefused, LedgerError
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.turns import ledger_turn
from sluice.pki.revocation.crl import Reason
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind
from tests.authorities import Authorities, authorities, check_ledger, listed
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
INTERNAL = AuthorityKind.INTERNAL
WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


class LostAnswer(PendingKeys):
    """The pending keys of a client that never receives the answer."""

    def clear(self) -> None:
        """Keep the keys, as if the answer had never arrived."""


class World:
    """Two running authorities and their clients."""

    def __init__(self, pki: TestPki, running: Authorities) -> None:
        self.pki = pki
        self.home = pki.home
        self.running = running
        self.master, self.auth = (self._of_the_home(role) for role in (Role.JOBMANAGER, Role.AUTH))

    def _of_the_home(self, role: Role) -> TlsIdentity:
        """Issue an identity into its directory in the home, where new trust is distributed."""
        directory = self.home.identity(role, f"{role}-1")
        self.pki.issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, role, f"{role}-1"))
        return TlsIdentity(directory)

    def locate(self) -> tuple[CaAddress, ...]:
        """Return the addresses of both authorities, as their clients look them up."""
        return read_cas(self.home)

    def job(self, number: int, address: CaAddress | None = None) -> x509.Certificate:
        """Issue an executor's identity, by any authority or by the one at ``address``."""
        executor = SpiffeId.executor(TRUST_DOMAIN, "a" * 32, number)
        csr = new_csr(executor)[1]
        if address is None:
            signed = OnlineIssuer(self.master, self.locate).sign_csr(csr, executor)
        else:
            body = JobRequest(spiffe_id=str(executor), csr_pem=csr.decode())
            signed = call(address.mutual, mutual_context(self.master), JOB_PATH, body, SignedChain)
        return x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]

    def revocations(self, address: CaAddress) -> set[int]:
        """Return the serial numbers in the CRL that the authority at ``address`` publishes."""
        answer = asyncio.run(client.fetch_trust(TlsIdentity(self.master.directory), address.mutual))
        assert answer.internal is not None
        return listed(answer.internal.crl_pem)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    pki = TestPki(tmp_path)
    with authorities(pki.home, tmp_path, "ca-1", "ca-2") as running:
        yield World(pki, running)


def test_two_authorities_issue_concurrently_and_each_honours_the_records_of_the_other(
    world: World, tmp_path: Path
) -> None:
    first, second = world.locate()
    assert (first.name, second.name) == ("ca-1", "ca-2")

    # 1. Both issue at the same time.
    with ThreadPoolExecutor(4) as threads:
        leaves = list(threads.map(lambda n: world.job(n, (first, second)[n % 2]), range(24)))
    recorded = check_ledger(world.home)
    assert {f"{leaf.serial_number:x}" for leaf in leaves} <= recorded.keys()

    # 2. An enrolment whose answer was lost is answered by the other; the token is good for nobody else.
    kept, again, thief = tmp_path / "kept", tmp_path / "again", tmp_path / "thief"
    token, lost = world.running.new_token(WORKER), LostAnswer()
    client.enrol(again, first.enrolment, token, WORKER.role, WORKER.name, pending=lost)
    client.enrol(kept, second.enrolment, token, WORKER.role, WORKER.name, pending=lost)
    (one,), (other,) = (read_certificates(each / "chain.pem")[:1] for each in (again, kept))
    assert one == other
    with pytest.raises(EnrolmentRefused, match="used already"):
        client.enrol(thief, second.enrolment, token, WORKER.role, WORKER.name)

    # 3. What was revoked at one is revoked at the other, and renews at neither.
    client.revoke(world.auth, second.mutual, f"{one.serial_number:x}", Reason.KEY_COMPROMISE, "ada")
    for address in (first, second):
        assert one.serial_number in world.revocations(address)
    check_ledger(world.home)


def test_no_request_fails_when_one_of_two_authorities_is_killed(world: World) -> None:
    """The other authority signs identities and tokens of jobs at once."""
    first, second = world.locate()
    issuer = OnlineIssuer(world.master, world.locate, retry_seconds=0)
    tokens = OnlineTokens(world.master, world.locate)
    executor = SpiffeId.executor(TRUST_DOMAIN, "a" * 32, 1)
    for name in ("ca-1", "ca-2"):
        world.running.kill(name)
        assert issuer.sign_csr(new_csr(executor)[1], executor)
        assert asyncio.run(tokens.sign_token(executor, ["reports"], "ada"))
        world.running.start(name)
    assert {each.pid for each in world.locate()}.isdisjoint({first.pid, second.pid})
    check_ledger(world.home)


def test_a_resumed_authority_applies_a_revocation_and_a_rotation_made_while_it_was_stopped(world: World) -> None:
    first, second = world.locate()
    before = world.job(1, first)
    world.running.signal("ca-1", signal.SIGSTOP)
    # 1. Meanwhile an identity is revoked, and another authority begins to sign: begun before, carried on at the other.
    serial = f"{before.serial_number:x}"
    client.revoke(world.auth, second.mutual, serial, Reason.KEY_COMPROMISE, "ada")
    home = ("--home", world.home.root)
    prepared = sluice("pki", "rotate", "prepare", "internal", *home)
    assert prepared.returncode == 0, prepared.stderr
    stopped = str(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1"))
    activated = sluice("pki", "rotate", "activate", "internal", "--force", stopped, "--wait", "60", *home)
    assert RotationStore(world.home.pki).read()[1] is Phase.ACTIVE, activated.stderr
    today = key_id(AuthorityStore(world.home.pki).certificate(INTERNAL))
    number = _number(world.home)
    # 2. It goes on: with today's key, and with the revocation.
    world.running.signal("ca-1", signal.SIGCONT)
    assert issuer_id(world.job(2, first)) == today
    assert issuer_id(world.job(3, second)) == today
    for address in (first, second):
        assert before.serial_number in world.revocations(address)
    assert _number(world.home) >= number, "no list came back"
    wait_until(
        lambda: all(
            issuer_id(read_certificates(world.home.identity(Role.CA, name) / "chain.pem")[0]) == today
            for name in ("ca-1", "ca-2")
        ),
        "both have certificates of today's authority",
    )
    check_ledger(world.home)


def _number(home: Home) -> int:
    numbers = []
    for path in home.pki.glob("revocation/internal-*/crl.pem"):
        crl = x509.load_pem_x509_crl(path.read_bytes())
        numbers.append(crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number)
    return max(numbers)


def test_a_stopped_holder_of_the_ledger_lock_is_reported_and_does_not_block_a_revocation(world: World) -> None:
    """A stopped process never releases the lock. This test holds it in place of one."""
    _, second = world.locate()
    leaf = world.job(1)
    with ledger_turn(ledger_path(world.home.pki)):
        with pytest.raises(LedgerError, match=f"process {os.getpid()} keeps the turn"):
            world.job(2, second)
        revoked = sluice(
            "pki", "revoke", f"{leaf.serial_number:x}", "--reason", "key-compromise", "--home", world.home.root
        )
        assert revoked.returncode == 0, revoked.stderr
        assert "revoking all the same" in revoked.stderr
        assert leaf.serial_number in world.revocations(second)
        refused = sluice("pki", "rotate", "prepare", "internal", "--home", world.home.root)
        refused = sluice("pki", "rotate", "activate", "internal", "--home", world.home.root)
        assert refused.returncode == 1
        assert RotationStore(world.home.pki).read()[1] is Phase.PREPARED
    assert world.job(3, second)
    check_ledger(world.home)


def test_a_second_process_with_the_name_of_a_running_authority_does_not_start(world: World) -> None:
    again = world.running.begin("ca-2")
    assert again.wait(60) == 1
    assert "another process is the authority ca-2" in world.running.log_of("ca-2")
    assert len(world.locate()) == 2


def test_a_trust_follower_switches_to_the_other_authority_when_one_is_killed(world: World) -> None:
    """The long poll ends with its authority; the next request goes to the other and gets a revocation."""
    leaf = world.job(1)
    identity = TlsIdentity(world.master.directory)
    clients = Failover(world.locate)

    async def follow() -> set[int]:
        known = TrustRequest()
        answer = await clients.ask(lambda address: client.fetch_trust(identity, address.mutual, known))
        asking = asyncio.create_task(
            clients.ask(
                lambda address: client.fetch_trust(identity, address.mutual, TrustRequest(known=answer.version))
            )
        )
        world.running.kill("ca-1")
        await asyncio.to_thread(
            lambda: Failover(world.locate).call(
                lambda address: client.revoke(
                    world.auth, address.mutual, f"{leaf.serial_number:x}", Reason.KEY_COMPROMISE, "ada"
                )
            )
        )
        news = await asking
        assert news.internal is not None
        return listed(news.internal.crl_pem)

    assert leaf.serial_number in asyncio.run(follow())


def test_the_ledger_records_every_issued_certificate_when_an_authority_is_killed(world: World) -> None:
    """A record may exist for an answer that was lost, but never an answer without its record."""
    left: list[str] = []
    stop = False

    def ask(number: int) -> None:
        while not stop:
            with contextlib.suppress(LedgerError):
                left.append(f"{world.job(number).serial_number:x}")

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(ask, number) for number in range(2)]
        wait_until(lambda: len(left) >= 10, "the authorities do not issue")
        world.running.kill("ca-1")
        enough = len(left) + 10
        wait_until(lambda: len(left) >= enough, "the other one does not issue")
        stop = True
        for each in asking:
            each.result()
    assert set(left) <= check_ledger(world.home).keys()
    assert len(left) == len(set(left))
    assert [each.event for each in read_ledger(ledger_path(world.home.pki))].count("recovered") <= 1
