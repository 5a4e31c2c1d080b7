"""A home that looks as if a cluster had run in it for a while, and backups of it.

The product's own code creates its contents.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.gateway.audit_log.log import AuditLog, audit_file
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.credentials.users import UserStore
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import only_one_named
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.token_store import TokenStore as JoinTokens
from sluice.pki.config import PkiConfig
from sluice.pki.identities.join_tokens import mint
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.ha.embedded import EmbeddedElection, EmbeddedLeadership
from sluice.runtime.ha.storage import LocalStorage
from sluice.runtime.ha.storage_identity import check_storage
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.secrets import Grant, GranteeKind, KeyRing, SecretStore, Subject
from sluice.runtime.jobmanager.store.job_store import JobStore, Recovered
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import BlobRef, JobState, JobSubmission, SecretReference
from tests.command import sluice

CONFIG = PkiConfig()
WORKER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-1")
OTHER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-2")
INTERNAL, EDGE = AuthorityKind.INTERNAL, AuthorityKind.EDGE
ENDED, RUNNING = "1" * 32, "2" * 32
PASSWORD = "correct horse battery"  # noqa: S105  of nobody
SECRET = b"the secret of a job"
ADA = Subject("ada", "nightly", roles=("submitter",), groups=())
PIPELINE = b"print('hello')\n"
_WEEK = dt.timedelta(days=7)


def leaf_of(signed: SignedChain) -> x509.Certificate:
    """Return the leaf certificate of an issued chain."""
    return x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]


@contextlib.contextmanager
def authority_of(home: Home) -> Iterator[OnlineAuthority]:
    """Open the online authority of ``home`` from its files within the block.

    It holds the lock of its name, as the authority's process does.
    """
    with only_one_named(home, "ca-1"), contextlib.closing(OnlineAuthority(home.pki, CONFIG)) as authority:
        yield authority


def enrol(home: Home, spiffe_id: SpiffeId) -> x509.Certificate:
    """Enrol with a new join token; returns the certificate."""
    with authority_of(home) as authority:
        return enrol_at(authority, home, spiffe_id)


def enrol_at(authority: OnlineAuthority, home: Home, spiffe_id: SpiffeId) -> x509.Certificate:
    """Like :func:`enrol`, with an authority that is already open."""
    record, text = mint(spiffe_id, AuthorityStore(home.pki).certificate(INTERNAL), now=utc_now())
    JoinTokens(home.pki).add(record, now=utc_now())
    return leaf_of(authority.enrol(text, new_csr(spiffe_id)[1]))


def revoke(home: Home, certificate: x509.Certificate, identity: SpiffeId) -> None:
    """Revoke a certificate permanently, by its serial number."""
    target = RevocationTarget.of(certificate, str(identity))
    RevocationStore(home.pki, CONFIG, clock=utc_now).revoke(INTERNAL, [target], Reason.KEY_COMPROMISE)


class LivedIn:
    """A home with the traces of a running cluster; see the module's documentation.

    Attributes:
        worker: the newest certificate of :data:`WORKER`.
        revoked: a revoked certificate of :data:`OTHER`.
        token: a valid API token of ada's; ``gone`` is a revoked one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = Home.at(root / "home").create()
        LocalIssuer(self.home, CONFIG).ensure_authorities()
        self.refresh()
        self.worker, self.revoked = enrol(self.home, WORKER), enrol(self.home, OTHER)
        revoke(self.home, self.revoked, OTHER)
        tokens = TokenStore(self.home)
        self.token = tokens.create("ada", "submitter", _WEEK)
        self.gone = tokens.create("bob", "viewer", _WEEK)
        tokens.revoke(self.gone[0].id)
        UserStore(self.home).add("carol", PASSWORD, roles=("viewer",), groups=("data",))
        with contextlib.closing(AuditLog(audit_file(self.home))) as log:
            for number in range(20):
                log.event("test.act", "local:test", {"number": number})
        asyncio.run(self._fill_store())
        self.key = root / "key.txt"
        made = sluice("backup", "key", "--output", self.key, "--json")
        self.recipient = json.loads(made.stdout)["recipient"]

    def copied(self, root: Path) -> LivedIn:
        """Copy the home to another directory."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        other = copy.copy(self)
        other.root, other.home, other.key = root, Home.at(root / "home"), root / "key.txt"
        return other

    def refresh(self) -> None:
        """Sign the CRLs that are due, as `sluice up` does."""
        RevocationStore(self.home.pki, CONFIG, clock=utc_now).refresh_all()

    async def _fill_store(self) -> None:
        async with stores(self.home) as (jobs, secrets):
            blob = self.root / "pipeline.py"
            blob.write_bytes(PIPELINE)
            for job_id in (ENDED, RUNNING):
                await jobs.accept(job_id, submission(), 1, lambda _: blob)
            detail = msgspec.structs.replace(
                accepted_detail(ENDED, submission(), 1), state=JobState.FINISHED, end_time=2
            )
            await jobs.put_result(JobRecord(submission=submission(), detail=detail))
            await secrets.put("db-password", SECRET, "root")
            await secrets.grant("db-password", Grant(kind=GranteeKind.USER, name="ada"))

    def back_up(self, name: str = "backup") -> Path:
        """Create a backup with ``sluice backup create``; returns its path."""
        made = sluice("backup", "create", self.root / name, "--home", self.home.root, "--recipient", self.recipient)
        assert made.returncode == 0, made.stderr
        return self.root / name

    def restore(self, backup: Path, *options: str | Path, to: Path | None = None) -> Home:
        """Restore a backup with ``sluice backup restore``; returns the restored home."""
        target = to or self.root / "restored"
        done = sluice("backup", "restore", backup, "--home", target, "--identity", self.key, *options)
        assert done.returncode == 0, done.stderr
        return Home.at(target)


def submission() -> JobSubmission:
    """Return the submission that both jobs have in common."""
    ref = BlobRef(sha256=hashlib.sha256(PIPELINE).hexdigest(), name="p.py", size=len(PIPELINE))
    return JobSubmission(name="p.py", owner="ada", pipeline=ref)


@contextlib.asynccontextmanager
async def stores(home: Home) -> AsyncIterator[tuple[JobStore, SecretStore]]:
    """Open the job store and the secret store of ``home`` within the block, as its leader does."""
    term = await EmbeddedElection(home.root / "ha", "jobmanager-1").elect(lambda: None)
    assert isinstance(term, EmbeddedLeadership)
    try:
        storage = LocalStorage(home.root / "ha" / "storage")
        await check_storage(term.pointers, storage)
        keys = KeyRing(home.root / "secret-keys", makes_keys=True)
        yield (
            JobStore(term.pointers, storage, epoch=term.epoch, origin="here"),
            SecretStore(term.pointers, storage, keys, CONFIG.trust_domain),
        )
    finally:
        await term.resign()


def recovered(home: Home) -> Recovered:
    """Return what the next leader of ``home`` recovers."""

    async def recover() -> Recovered:
        async with stores(home) as (jobs, _):
            return await jobs.recover()

    return asyncio.run(recover())


def read_secret_of(home: Home) -> bytes:
    """Return the secret value that a job of ada's would get."""

    async def read() -> bytes:
        async with stores(home) as (_, secrets):
            (chosen,) = await secrets.choose([SecretReference(name="db-password", version=0)], ADA)
            return await secrets.open(chosen, ADA)

    return asyncio.run(read())
