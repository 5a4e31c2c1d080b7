"""The parts of a cluster that receipts need: identities, an audit log, and the record of an ended job."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sluice.core.egress_evidence import EgressRow, EgressVerdict
from sluice.core.home import Home
from sluice.gateway.audit_log.log import AuditLog, audit_file
from sluice.gateway.audit_log.receipts import prove_receipt, receipt_detail
from sluice.pki.attestations.audit_proof import RECEIPT_ISSUED, AuditProof, ProofOrder
from sluice.pki.attestations.dsse import canonical
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.jobmanager.gateways import EgressConnections
from sluice.runtime.jobmanager.views import AttemptView, JobDetail, JobRecord, ProcessIdentity
from sluice.runtime.messages import (
    Admission,
    Archive,
    BlobRef,
    ConnectionEvidence,
    JobProgress,
    JobState,
    JobSubmission,
    SecretReference,
    StageReport,
    StageState,
    StageTable,
)
from sluice.runtime.receipts.issuing import ReceiptIssuer

JOB = "a" * 32
DOMAIN = "sluice.local"
SALT = "5" * 64
STARTED_MS = 1_760_000_000_000


def spiffe(path: str, domain: str = DOMAIN) -> str:
    return f"spiffe://{domain}/{path}"


SUBMISSION = JobSubmission(
    name="nightly",
    owner="ada",
    owner_roles=("submitter",),
    owner_groups=("people-of-the-data-team",),
    pipeline=BlobRef(sha256="1" * 64, name="etl.py", size=10),
    files=(BlobRef(sha256="2" * 64, name="numbers.csv", size=20),),
    archives=(Archive(blob=BlobRef(sha256="3" * 64, name="env.tar.gz", size=30), name="env"),),
    args=("--password", "hunter2"),
    spark_conf={"spark.secret": "conf-hunter3"},
    secrets=(SecretReference(name="prod-database"),),
    admission=Admission(
        method="token",
        credential_kind="token",
        credential="tok-1",
        operation="jobs.submit",
        request_id="req-1",
        assertion_id="jti-1",
        policy="9" * 64,
    ),
    salt=SALT,
)

DETAIL = JobDetail(
    id=JOB,
    name="nightly",
    owner="ada",
    state=JobState.FINISHED,
    start_time=STARTED_MS,
    end_time=STARTED_MS + 60_000,
    duration_ms=60_000,
    attempt=1,
    progress=JobProgress(tasks_finished=4),
    executors=(),
    timestamps={},
    failure=None,
    pending_reason="",
    attempts=(
        AttemptView(
            number=1, started_at=STARTED_MS, ended_at=STARTED_MS + 60_000, outcome="FINISHED", taskmanager="tm-1"
        ),
    ),
)


def process(path: str) -> ProcessIdentity:
    return ProcessIdentity(
        identity=spiffe(path),
        attempt=1,
        taskmanager="tm-1",
        isolation="sandbox",
        egress="enforce",
        serials=("ab12",),
        certificates=1,
        not_before=STARTED_MS // 1000,
        not_after=STARTED_MS // 1000 + 3600,
    )


def connection(local: str, peer: str, direction: str = "accepted") -> ConnectionEvidence:
    return ConnectionEvidence(
        channel="rpc",
        local=spiffe(local),
        peer=spiffe(peer),
        direction=direction,
        protocol="TLSv1.3",
        cipher="TLS_AES_256_GCM_SHA384",
        opened_at=STARTED_MS / 1000 + 1.5,
    )


RECORD = JobRecord(
    submission=SUBMISSION,
    detail=DETAIL,
    connections=(
        connection("jobmanager/jm-1", f"job/{JOB}/driver"),
        connection("jobmanager/jm-1", f"job/{JOB}/driver"),
        connection(f"job/{JOB}/executor/1", f"job/{JOB}/driver", "dialed"),
    ),
    seen_connections=(
        connection("jobmanager/jm-1", f"job/{JOB}/driver"),
        msgspec.structs.replace(connection("jobmanager/jm-1", f"job/{JOB}/driver"), opened_at=STARTED_MS / 1000 + 9),
    ),
    stages=StageTable(
        stages=(
            StageReport(
                id=0,
                job=0,
                name="sum",
                state=StageState.FINISHED,
                attempts=1,
                tasks_total=4,
                tasks_running=0,
                tasks_finished=4,
                tasks_failed=0,
                input_bytes=100,
                output_bytes=7,
            ),
        )
    ),
    processes=(process(f"job/{JOB}/driver"), process(f"job/{JOB}/executor/1")),
    sluice_version="1.0",
    spark_version="4.0.0",
)


def row(number: int, host: str, verdict: EgressVerdict, **changes: object) -> EgressRow:
    row = EgressRow(
        id=f"{number:032x}",
        job_id=JOB,
        attempt=1,
        process="executor/1",
        protocol="tcp",
        host=host,
        address="",
        port=443,
        verdict=verdict,
        opened_at=STARTED_MS / 1000 + 2,
        bytes_up=5,
        bytes_down=6,
    )
    return EgressRow(**{name: getattr(row, name) for name in row.__struct_fields__} | changes)


OUTSIDE = EgressConnections(
    rows=(
        row(1, "api.example.com", EgressVerdict.ALLOWED),
        row(2, "api.example.com", EgressVerdict.ALLOWED),
        row(3, "evil.example.com", EgressVerdict.REFUSED, count=40),
    ),
    since=STARTED_MS / 1000 - 5,
)


@dataclass
class ReceiptWorld:
    """A JobManager and an auth service that share a home; ``now`` is their clock."""

    root: Path
    now: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    trust_domain: str = DOMAIN

    def __post_init__(self) -> None:
        self.home = Home.at(self.root / "home")
        config = PkiConfig(trust_domain=self.trust_domain)
        self.issuer = LocalIssuer(self.home, config, clock=lambda: self.now)
        self.issuer.ensure_authorities()
        self.jobmanager = self.identity(Role.JOBMANAGER, "jm-1")
        self.auth = self.identity(Role.AUTH, "auth-1")
        self.anchors = self.jobmanager.material.anchors
        self.log = AuditLog(audit_file(self.home), clock=lambda: self.now)

    def identity(self, role: Role, name: str = "") -> TlsIdentity:
        spiffe_id = (
            SpiffeId(self.trust_domain, role, name, JOB)
            if role in {Role.DRIVER, Role.EXECUTOR}
            else SpiffeId.process(self.trust_domain, role, name)
        )
        directory = self.root / "identities" / f"{role}-{name}"
        self.issuer.issue_to(directory, spiffe_id)
        return TlsIdentity(directory, clock=lambda: self.now)

    async def prove(self, order: ProofOrder, by: str) -> AuditProof:
        return prove_receipt(self.log.event(RECEIPT_ISSUED, order.principal, receipt_detail(order, by)), self.auth)

    def issue(
        self,
        record: JobRecord = RECORD,
        outside: EgressConnections | None = OUTSIDE,
        *,
        disclose: bool = False,
        signer: TlsIdentity | None = None,
    ) -> bytes:
        """Issue a receipt, in the format that the command writes."""
        issuer = ReceiptIssuer(signer or self.jobmanager, self.prove, clock=lambda: self.now)
        return canonical(asyncio.run(issuer.issue(record, outside, principal="ada", disclose=disclose))) + b"\n"
