"""Composes the statement about an ended job from its record. No I/O."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from sluice.core import REPLACEMENT, EgressRow, EgressVerdict, printable
from sluice.pki import SpiffeId
from sluice.runtime.jobmanager import EgressConnections, JobRecord
from sluice.runtime.messages import BlobRef, ConnectionEvidence, JobSubmission
from sluice.runtime.receipts.document import (
    MAX_ATTEMPTS,
    MAX_CONNECTIONS,
    MAX_DESTINATIONS,
    MAX_PROCESSES,
    MAX_REPORTED_CONNECTIONS,
    MAX_ROLES,
    MAX_SUBJECTS,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    Attempt,
    Connection,
    Connections,
    Decision,
    Destination,
    DigestSet,
    DisclosedParameters,
    Egress,
    Parameters,
    Predicate,
    Process,
    Processes,
    ReportedByJob,
    Run,
    Statement,
    Subject,
    SubjectNotes,
    Submission,
    commitment,
)

MAX_TEXT = 1024
"""Longest text that is copied into a receipt, in characters; longer text is truncated."""
MAX_CONNECTION_TEXT = 160
"""The same for connections. A job may have forged them, and must not prevent its receipt with long texts."""
NOT_RECORDED = (
    "locations of inputs and outputs",
    "the version of Java",
    "values and names of secrets",
)
ADMISSION_NOT_RECORDED = "the gateway's decision about the submission: it came in under an earlier version"


def compose(
    record: JobRecord, outside: EgressConnections | None, *, issued_by: SpiffeId, now: dt.datetime, disclose: bool
) -> Statement:
    """Compose the statement, without the proof from the audit log.

    Args:
        record: record of an ended job, with its submission.
        outside: its outbound connections; None: unknown.
        issued_by: identity of the future signer.
        now: current time, with time zone.
        disclose: whether to include arguments and settings.
    """
    submission = record.submission
    unknown = (() if submission.admission else (ADMISSION_NOT_RECORDED,)) + NOT_RECORDED
    # The rest of the evidence comes from files that the job's code can write, so the job may have forged it.
    seen = set(record.seen_connections)
    told = [each for each in record.connections if each not in seen]
    return Statement(
        type=STATEMENT_TYPE,
        subject=_bounded(list(_subjects(submission))),
        predicate_type=PREDICATE_TYPE,
        predicate=Predicate(
            issued_at=_whole(now),
            issued_by=str(issued_by),
            run=_run(record),
            submission=_submission(submission, disclose=disclose),
            processes=_processes(record),
            connections=_connections(record.seen_connections, record.seen_dropped, MAX_CONNECTIONS),
            egress=_egress(record, outside),
            reported_by_job=_reported(record, told),
            not_recorded=unknown,
            audit_log=None,
        ),
    )


def _subjects(submission: JobSubmission) -> Iterator[Subject]:
    """Yield the subjects. Files of one part have different names; if they do not, later ones get a number."""
    seen: Counter[str] = Counter()
    parts: tuple[tuple[str, Iterable[BlobRef]], ...] = (
        ("pipeline", (submission.pipeline,)),
        ("file", submission.files),
        ("pyFile", submission.py_files),
        ("archive", (each.blob for each in submission.archives)),
    )
    for part, blobs in parts:
        for blob in blobs:
            name = f"{part}/{blob.name}"
            seen[name] += 1
            yield Subject(
                name=_text(name) if seen[name] == 1 else f"{_text(name, MAX_TEXT - 8)}#{seen[name]}",
                digest=DigestSet(sha256=blob.sha256),
                annotations=SubjectNotes(bytes=blob.size),
            )


def _bounded(subjects: list[Subject]) -> tuple[Subject, ...]:
    """Limit the subjects; those beyond the limit become a single subject with the digest of their digests."""
    if len(subjects) <= MAX_SUBJECTS:
        return tuple(subjects)
    listed, others = subjects[: MAX_SUBJECTS - 1], subjects[MAX_SUBJECTS - 1 :]
    together = hashlib.sha256("".join(f"{each.digest.sha256}\n" for each in others).encode()).hexdigest()
    rest = Subject(
        name=f"digests of {len(others)} further files",
        digest=DigestSet(sha256=together),
        annotations=SubjectNotes(bytes=sum(each.annotations.bytes for each in others)),
    )
    return (*listed, rest)


def _run(record: JobRecord) -> Run:
    detail = record.detail
    return Run(
        job=detail.id,
        name=_text(detail.name),
        kind=detail.kind.value,
        state=detail.state.value,
        accepted_at=_moment(detail.start_time),
        ended_at=_moment(detail.end_time or detail.start_time),
        attempts=tuple(
            Attempt(
                number=each.number,
                started_at=_moment(each.started_at),
                ended_at=None if each.ended_at is None else _moment(each.ended_at),
                outcome=each.outcome,
                taskmanager=_text(each.taskmanager),
            )
            for each in detail.attempts[-MAX_ATTEMPTS:]
        ),
        sluice_version=record.sluice_version,
        spark_version=record.spark_version,
    )


def _submission(submission: JobSubmission, *, disclose: bool) -> Submission:
    admitted = submission.admission
    return Submission(
        principal=_text(submission.owner),
        roles=tuple(map(_text, submission.owner_roles[:MAX_ROLES])),
        authentication=admitted.method if admitted else "",
        credential_kind=admitted.credential_kind if admitted else "",
        credential=_text(admitted.credential) if admitted else "",
        decision=Decision(
            operation=admitted.operation,
            request_id=_text(admitted.request_id),
            assertion_id=_text(admitted.assertion_id),
            policy_sha256=admitted.policy,
        )
        if admitted
        else None,
        parameters=Parameters(
            arguments=len(submission.args),
            commitment=commitment(submission.args, submission.spark_conf, submission.salt),
            executors=submission.executors,
            executor_cores=submission.executor_cores,
            executor_memory_mb=submission.executor_memory_mb,
            secrets=len(submission.secrets),
            disclosed=DisclosedParameters(
                arguments=submission.args, spark_conf=submission.spark_conf, salt=submission.salt
            )
            if disclose
            else None,
        ),
    )


def _processes(record: JobRecord) -> Processes:
    kept = record.processes[-MAX_PROCESSES:]
    return Processes(
        listed=tuple(
            Process(
                identity=each.identity,
                attempt=each.attempt,
                taskmanager=_text(each.taskmanager),
                isolation=each.isolation,
                egress=each.egress,
                serials=each.serials,
                certificates=each.certificates,
                not_before=_moment(each.not_before * 1000),
                not_after=_moment(each.not_after * 1000),
            )
            for each in kept
        ),
        left_out=record.processes_dropped + len(record.processes) - len(kept),
    )


def _connections(evidence: Iterable[ConnectionEvidence], dropped: int, limit: int) -> Connections:
    together: dict[tuple[str, ...], list[float]] = {}
    for each in evidence:
        ends = (each.local, each.peer) if each.direction == "dialed" else (each.peer, each.local)
        texts = tuple(_text(text, MAX_CONNECTION_TEXT) for text in (each.channel, *ends, each.protocol, each.cipher))
        together.setdefault(texts, []).append(each.opened_at)
    listed = [
        Connection(
            channel=channel,
            dialer=dialer,
            listener=listener,
            protocol=protocol,
            cipher=cipher,
            count=len(times),
            first_at=_moment(min(times) * 1000),
            last_at=_moment(max(times) * 1000),
        )
        for (channel, dialer, listener, protocol, cipher), times in sorted(together.items())
    ]
    kept = listed[:limit]
    return Connections(
        listed=tuple(kept), left_out=dropped + sum(each.count for each in listed) - sum(each.count for each in kept)
    )


def _egress(record: JobRecord, outside: EgressConnections | None) -> Egress:
    rows = () if outside is None else outside.rows
    together: dict[tuple[str, str, str], list[EgressRow]] = {}
    for row in rows:
        together.setdefault((_text(row.target), row.protocol, row.verdict.value), []).append(row)
    listed = sorted(
        (
            Destination(
                target=target,
                protocol=protocol,
                verdict=verdict,
                count=sum(row.count for row in found),
                bytes_up=sum(row.bytes_up for row in found),
                bytes_down=sum(row.bytes_down for row in found),
            )
            for (target, protocol, verdict), found in together.items()
        ),
        key=lambda each: (-each.count, each.target, each.protocol, each.verdict),
    )
    counts = Counter(dict.fromkeys(EgressVerdict, 0))
    for row in rows:
        counts[row.verdict] += row.count
    return Egress(
        complete=outside is not None
        and not outside.forgotten
        and not any(row.open for row in rows)
        and outside.since * 1000 <= record.detail.start_time
        and bool(record.processes)
        and record.processes_dropped == 0
        and all(each.egress not in {"", "off"} for each in record.processes),
        allowed=counts[EgressVerdict.ALLOWED],
        refused=counts[EgressVerdict.REFUSED],
        would_be_refused=counts[EgressVerdict.WOULD_REFUSE],
        listed=tuple(listed[:MAX_DESTINATIONS]),
        left_out=max(0, len(listed) - MAX_DESTINATIONS),
    )


def _reported(record: JobRecord, evidence: list[ConnectionEvidence]) -> ReportedByJob:
    stages, progress = record.stages.stages, record.detail.progress
    return ReportedByJob(
        stages=len(stages),
        stages_left_out=_count(record.stages.left_out),
        tasks_finished=_count(progress.tasks_finished),
        tasks_failed=_count(progress.tasks_failed),
        input_bytes=_count(sum(each.input_bytes for each in stages)),
        output_bytes=_count(sum(each.output_bytes for each in stages)),
        connections=_connections(evidence, _count(record.connections_dropped), MAX_REPORTED_CONNECTIONS),
    )


def _count(number: int) -> int:
    """Clamp a number that a job has reported to the range of a receipt."""
    return max(0, min(number, (1 << 53) - 1))


def _text(text: str, limit: int = MAX_TEXT) -> str:
    """Truncate a text chosen by users or jobs, and replace its control characters."""
    return printable(text if len(text) <= limit else text[: limit - 1] + "…", REPLACEMENT)


def _moment(milliseconds: float) -> dt.datetime:
    """Convert to a time in whole milliseconds; an invalid time reported by a job becomes the epoch."""
    try:
        return _whole(dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC))
    except (ValueError, OverflowError, OSError):
        return dt.datetime.fromtimestamp(0, dt.UTC)


def _whole(moment: dt.datetime) -> dt.datetime:
    moment = moment.astimezone(dt.UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
