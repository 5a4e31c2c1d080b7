"""The content of a receipt: an in-toto Statement, version 1, with Sluice's own predicate. Data types only.

The parts have different sources. ``submission`` comes from the gateway's assertion. ``run``, ``processes``,
``connections`` and ``egress`` are what the cluster's own processes observed. ``reported_by_job`` comes from the job's
driver and executors, which run the job's code: a hostile job can write anything there.

A receipt contains no error texts, logs or names of secrets, and arguments and settings only on request, because they
may contain secrets or reveal something about them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Annotated

import msgspec

from sluice.pki.attestations import AuditProof, canonical

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:sluice:run-receipt:v1"

MAX_SUBJECTS = 1000
MAX_ATTEMPTS = 50
MAX_PROCESSES = 300
MAX_CONNECTIONS = 400
"""Maximum number of entries; connections of one channel between the same two identities share an entry."""
MAX_REPORTED_CONNECTIONS = 100
"""The same for connections that the job reports."""
MAX_DESTINATIONS = 200
"""Maximum number of listed destinations; further ones are only counted."""
MAX_ROLES = 64
MAX_ARGUMENTS = 10_000

_COMMITMENT = b"sluice run receipt parameters 1\0"

_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class DigestSet(_Part, frozen=True):
    """The digests of a subject."""

    sha256: _Digest


class SubjectNotes(_Part, frozen=True):
    """Annotations of a subject."""

    bytes: _Count


class Subject(_Part, frozen=True):
    """A file that the job ran or was given: ``pipeline/NAME``, ``file/NAME``, ``pyFile/NAME``, ``archive/NAME``."""

    name: _Text
    digest: DigestSet
    annotations: SubjectNotes


class Decision(_Part, frozen=True):
    """How the gateway admitted the submission. The decision's record in the audit log has the same request id.

    ``policy_sha256`` is the digest of the policy file; empty for submissions through earlier versions of the gateway.
    """

    operation: _Text
    request_id: _Text
    assertion_id: _Text
    policy_sha256: str


class DisclosedParameters(_Part, frozen=True):
    """Arguments and Spark settings, with the salt of their commitment."""

    arguments: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_ARGUMENTS)]
    spark_conf: dict[str, str]
    salt: str


class Parameters(_Part, frozen=True):
    """The parameters of the job.

    ``commitment`` is a SHA-256 over arguments and Spark settings with a random salt, so that nobody can find them by
    guessing; empty: the job was submitted to an earlier version. ``disclosed`` is present only if the owner asked for
    it.
    """

    arguments: _Count
    commitment: str
    executors: _Count
    executor_cores: _Count
    executor_memory_mb: _Count
    secrets: _Count
    disclosed: DisclosedParameters | None


class Submission(_Part, frozen=True):
    """Who submitted the job, with which roles, and how they were authenticated. ``decision`` null: not recorded."""

    principal: _Text
    roles: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_ROLES)]
    authentication: _Text
    credential_kind: _Text
    credential: _Text
    decision: Decision | None
    parameters: Parameters


class Attempt(_Part, frozen=True):
    """One attempt; times are in RFC 3339."""

    number: _Count
    started_at: dt.datetime
    ended_at: dt.datetime | None
    outcome: _Text
    taskmanager: _Text


class Run(_Part, frozen=True):
    """The job, its outcome and its attempts. Versions are those of the JobManager that led when it ended."""

    job: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    name: _Text
    kind: _Text
    state: _Text
    accepted_at: dt.datetime
    ended_at: dt.datetime
    attempts: Annotated[tuple[Attempt, ...], msgspec.Meta(max_length=MAX_ATTEMPTS)]
    sluice_version: _Text
    spark_version: _Text


class Process(_Part, frozen=True):
    """A driver or an executor in one attempt: its certificates, where it ran, and how it was isolated.

    ``certificates`` is their number, ``serials`` has the latest ones. ``isolation`` and ``egress`` are empty when
    unknown.
    """

    identity: _Text
    attempt: _Count
    taskmanager: _Text
    isolation: _Text
    egress: _Text
    serials: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=16)]
    certificates: _Count
    not_before: dt.datetime
    not_after: dt.datetime


class Processes(_Part, frozen=True):
    """The processes; ``left_out`` earlier ones are not listed."""

    listed: Annotated[tuple[Process, ...], msgspec.Meta(max_length=MAX_PROCESSES)]
    left_out: _Count


class Connection(_Part, frozen=True):
    """Mutual TLS connections of one channel from one identity to another, as one end observed them."""

    channel: _Text
    dialer: _Text
    listener: _Text
    protocol: _Text
    cipher: _Text
    count: _Count
    first_at: dt.datetime
    last_at: dt.datetime


class Connections(_Part, frozen=True):
    """The connections; ``left_out`` earlier ones are not counted here."""

    listed: Annotated[tuple[Connection, ...], msgspec.Meta(max_length=MAX_CONNECTIONS)]
    left_out: _Count


class Destination(_Part, frozen=True):
    """Outbound connections of the job to one destination with the same verdict."""

    target: _Text
    protocol: _Text
    verdict: _Text
    count: _Count
    bytes_up: _Count
    bytes_down: _Count


class Egress(_Part, frozen=True):
    """Outbound connections, as observed by the processes outside the job's boxes.

    ``complete`` is False when there may have been others, which the audit log has; True when no row is known to be
    missing. ``allowed``, ``refused`` and ``would_be_refused`` count all connections, including those to destinations
    that are not listed.
    """

    complete: bool
    allowed: _Count
    refused: _Count
    would_be_refused: _Count
    listed: Annotated[tuple[Destination, ...], msgspec.Meta(max_length=MAX_DESTINATIONS)]
    left_out: _Count


class ReportedByJob(_Part, frozen=True):
    """What the job's own processes report. A hostile job can forge it.

    Byte counts are Spark's for the stages of the last attempt.
    """

    stages: _Count
    stages_left_out: _Count
    tasks_finished: _Count
    tasks_failed: _Count
    input_bytes: _Count
    output_bytes: _Count
    connections: Connections


class Predicate(_Part, frozen=True):
    """The predicate of a receipt. ``not_recorded`` lists what the cluster does not know."""

    issued_at: dt.datetime
    issued_by: _Text
    run: Run
    submission: Submission
    processes: Processes
    connections: Connections
    egress: Egress
    reported_by_job: ReportedByJob
    not_recorded: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=16)]
    audit_log: AuditProof | None
    """None only while the digest is computed."""


class Statement(_Part, frozen=True):
    """The in-toto statement."""

    type: str = msgspec.field(name="_type")
    subject: Annotated[tuple[Subject, ...], msgspec.Meta(min_length=1, max_length=MAX_SUBJECTS)]
    predicate_type: str
    predicate: Predicate

    def digest(self) -> str:
        """SHA-256 of the statement without its proof from the audit log; the audit log records this digest."""
        return hashlib.sha256(canonical(with_proof(self, None))).hexdigest()


def with_proof(statement: Statement, proof: AuditProof | None) -> Statement:
    """Return the statement with this proof from the audit log."""
    return msgspec.structs.replace(statement, predicate=msgspec.structs.replace(statement.predicate, audit_log=proof))


def commitment(arguments: tuple[str, ...], spark_conf: dict[str, str], salt: str) -> str:
    """Compute the commitment to these parameters; empty without a salt."""
    if not salt:
        return ""
    text = canonical({"arguments": arguments, "sparkConf": spark_conf})
    return hashlib.sha256(_COMMITMENT + bytes.fromhex(salt) + text).hexdigest()
