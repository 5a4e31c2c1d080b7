"""Verifies a receipt offline, with trust anchors only: no network, no cluster, no clock. No I/O.

Certificates are verified at the time of the audit log's record, which another identity than the receipt's signer
attests. So a JobManager's key that is stolen after its certificate has expired cannot sign a receipt, and certificates
that have expired since do not invalidate one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cryptography import x509

from sluice.core import InvalidIdentity, rfc3339
from sluice.pki import Role, SpiffeId
from sluice.pki.attestations import (
    IN_TOTO,
    RECEIPT_ISSUED,
    AttestationRejected,
    Proven,
    check_proof,
    decode_canonical,
    open_envelope,
)
from sluice.runtime.messages import JobState
from sluice.runtime.receipts.document import PREDICATE_TYPE, STATEMENT_TYPE, Statement, commitment

MAX_SIGNING_DELAY = dt.timedelta(minutes=5)
"""Maximum difference between the signer's time and the audit log's."""

NOT_PROVEN = (
    "what the code computed, or that its results are right",
    "what the job's own processes report (reportedByJob): the job can forge it",
    "that nothing else happened: it contains only what was recorded",
    "anything, if an attacker had the JobManager's key while its certificate was valid: a false one is recorded, too",
    "its time, if an attacker had the keys of both the JobManager and the auth service, or the key of the authority",
    "that neither certificate was revoked: keep the authority's revocation lists, and compare the serial number",
)
"""What even a valid receipt does not prove."""


@dataclass(frozen=True, slots=True)
class VerifiedReceipt:
    """A valid receipt.

    Attributes:
        checks: what was verified, in order.
    """

    statement: Statement
    signer: SpiffeId
    serial: str
    expires_at: dt.datetime
    proven: Proven
    checks: tuple[str, ...]


def verify_receipt(
    data: bytes,
    anchors: Sequence[x509.Certificate],
    *,
    trust_domain: str = "",
    files: Collection[tuple[str, str]] = (),
    audit_key: str = "",
) -> VerifiedReceipt:
    """Verify the receipt in ``data``.

    Args:
        data: the document.
        anchors: the trusted authorities.
        trust_domain: the only accepted trust domain; empty: any that ``anchors`` certify.
        files: names and SHA-256 of files that must be among the subjects of the receipt.
        audit_key: id of the required key of the audit log; empty: any key that the auth service attests.

    Raises:
        AttestationRejected: names the first violated rule.
    """
    checks: list[str] = []
    # 1. The form: an envelope with one signature and a statement of our type, both in canonical form.
    opened = open_envelope(data, IN_TOTO)
    statement = decode_canonical(opened.payload, Statement, "the receipt")
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise AttestationRejected(f"the document is not a receipt: its predicate is {statement.predicate_type[:80]!r}")
    predicate = statement.predicate
    if predicate.audit_log is None:
        raise AttestationRejected("the receipt has no proof from the audit log")
    checks.append("the form: an in-toto statement in a DSSE envelope, in canonical form")
    # 2. The time: that of the record in the audit log, attested by the auth service.
    proven = check_proof(predicate.audit_log, anchors=anchors)
    checks.append(
        f"the audit log has recorded it as line {proven.record} at {rfc3339(proven.at)}, says {proven.witness}"
    )
    # 3. The signature, by a JobManager whose certificate was valid at that time.
    verified = opened.verify(anchors=anchors, at=proven.at, roles={Role.JOBMANAGER})
    signer = verified.spiffe_id
    checks.append(f"the signature is of {signer}, certificate {opened.signer.serial}, valid at that time")
    # 4. The record is about this receipt and this signer.
    expected = {
        "kind": RECEIPT_ISSUED,
        "sha256": statement.digest(),
        "job": predicate.run.job,
        "by": str(signer),
    }
    for name, value in expected.items():
        if proven.detail.get(name) != value:
            raise AttestationRejected(f"the audit log's record is of another receipt: its {name} is not {value}")
    if abs(predicate.issued_at - proven.at) > MAX_SIGNING_DELAY:
        raise AttestationRejected("the receipt says that it was issued at another time than the audit log does")
    checks.append("the record has the digest of this receipt, its job and its signer")
    # 5. All identities belong to one trust domain, and those of processes to one job.
    _check_names(statement, signer, proven, trust_domain)
    checks.append(
        f"all identities are of trust domain {signer.trust_domain}, those of processes of job {expected['job']}"
    )
    _check_outcome(statement)
    # 6. What the caller asked for in addition.
    _check_parameters(statement, checks)
    _check_files(statement, files, checks)
    if audit_key:
        if proven.key != audit_key:
            raise AttestationRejected(f"the checkpoint is of the audit log's key {proven.key}, not of {audit_key}")
        checks.append(f"the audit log's key is {audit_key}")
    return VerifiedReceipt(statement, signer, opened.signer.serial, verified.expires_at, proven, tuple(checks))


def _check_names(statement: Statement, signer: SpiffeId, proven: Proven, trust_domain: str) -> None:
    predicate = statement.predicate
    if trust_domain and signer.trust_domain != trust_domain:
        raise AttestationRejected(f"the receipt is of trust domain {signer.trust_domain}, not of {trust_domain}")
    if proven.witness.trust_domain != signer.trust_domain:
        raise AttestationRejected(f"{signer} and {proven.witness} are of different trust domains")
    if predicate.issued_by != str(signer):
        raise AttestationRejected(f"the receipt says that {predicate.issued_by} issued it, and {signer} has signed it")
    for process in predicate.processes.listed:
        try:
            identity = SpiffeId.parse(process.identity)
        except InvalidIdentity as error:
            raise AttestationRejected("a process in the receipt has no identity") from error
        if (identity.trust_domain, identity.job_id) != (signer.trust_domain, predicate.run.job):
            raise AttestationRejected(f"the process {identity} is not of the receipt's job")


def _check_outcome(statement: Statement) -> None:
    run = statement.predicate.run
    try:
        ended = JobState(run.state).terminal
    except ValueError:
        ended = False
    if not ended or run.ended_at < run.accepted_at:
        raise AttestationRejected(f"the receipt is of a job that has not ended: it is {run.state[:40]!r}")


def _check_parameters(statement: Statement, checks: list[str]) -> None:
    parameters = statement.predicate.submission.parameters
    shown = parameters.disclosed
    if shown is None:
        return
    try:
        computed = commitment(shown.arguments, shown.spark_conf, shown.salt)
    except ValueError as error:
        raise AttestationRejected("the salt of the parameters is not hexadecimal") from error
    if computed != parameters.commitment or len(shown.arguments) != parameters.arguments:
        raise AttestationRejected("the disclosed parameters are not those that the receipt commits to")
    if computed:
        checks.append("the disclosed arguments and settings are those of the commitment")


def _check_files(statement: Statement, files: Collection[tuple[str, str]], checks: list[str]) -> None:
    known = {subject.digest.sha256: subject.name for subject in statement.subject}
    for name, digest in files:
        if digest not in known:
            raise AttestationRejected(f"{name} (sha256 {digest}) is not among what the job ran")
        checks.append(f"{name} is what the job ran as {known[digest]}")
