"""Compares the decisions in an audit log with those of a changed policy. No I/O; memory does not grow with the log.

Requests to the gateway are compared by operation, connections to the outside by destination. Only decisions of the
policy are made again. Refusals for another reason (no credential, no such route, no CSRF token, an address that a name
may not have) say nothing about the policy and are ignored.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.gateway.audit_log import AUTH_SERVICE_OPERATION, AuditRecord, event_time
from sluice.gateway.authz import EGRESS_OPERATION, OWNED_OPERATIONS, EgressRuling, EgressSubject, Policy, Verdict
from sluice.gateway.policy_replay.connections import count_of, is_egress, is_name, job_of, was_allowed
from sluice.gateway.policy_replay.requesters import Requesters
from sluice.pki.assertions import Principal

MAX_ROWS = 20_000
"""Maximum number of rows of a result. Further changes are only counted."""
MAX_REMEMBERED = 20_000
"""Maximum number of cached decisions about similar records."""


class Effect(enum.StrEnum):
    """The effect of a changed policy on a request."""

    REFUSED = "refused"
    """It was allowed, and would be refused."""
    OWN_ONLY = "own only"
    """It was allowed for jobs of any owner, and would be allowed only for the principal's own jobs."""
    ALLOWED = "allowed"
    """It was refused, and would be allowed (at least for the principal's own jobs)."""


@dataclass(slots=True)
class DecisionChange:
    """All requests of one principal for one operation that would change in the same way.

    For connections to the outside, ``target`` is the destination and ``job`` the job's name; else both are empty.
    """

    effect: Effect
    principal: str
    operation: str
    reason: str
    first: dt.datetime
    last: dt.datetime
    target: str = ""
    job: str = ""
    count: int = 0

    def note(self, when: dt.datetime, times: int = 1) -> None:
        """Count a request, or the requests for which one record stands."""
        self.count += times
        self.first = min(self.first, when)
        self.last = max(self.last, when)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """The effect of a changed policy on similar records. ``effect`` is None if there is none."""

    effect: Effect | None
    operation: str
    reason: str


@dataclass(slots=True)
class Replay:
    """Processes records one by one.

    Attributes:
        policy: the changed policy.
        requesters: finds principals, and has the current policy.
        since: earlier requests are ignored.
        decided: number of requests that were decided again.
        unknown: number of requests whose principal's roles are unknown; they are not decided again.
        left_out: number of requests that would change, but exceed :data:`MAX_ROWS`.
    """

    policy: Policy
    requesters: Requesters
    since: dt.datetime | None = None
    decided: int = 0
    unknown: int = 0
    left_out: int = 0
    _rows: dict[tuple[Effect, str, str, str, str], DecisionChange] = field(default_factory=dict)
    _judgements: dict[tuple[object, ...], _Judgement | None] = field(default_factory=dict)
    _operations: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._operations = self.policy.operations | self.requesters.current.operations

    def take(self, record: AuditRecord) -> None:
        """Process the next record of the log."""
        if is_egress(record):
            self._take_egress(record)
            return
        if record.event not in {"decision", "traffic"} or not record.principal or not record.decision:
            return
        if record.event == "traffic" and isinstance(record.detail, dict) and AUTH_SERVICE_OPERATION in record.detail:
            return  # the auth service decided, and wrote its own record
        when = event_time(record)
        if self.since is None or when >= self.since:
            self._take_request(record, when)

    @property
    def rows(self) -> tuple[DecisionChange, ...]:
        """The changes: refusals first, then by frequency."""
        order = list(Effect)
        return tuple(
            sorted(
                self._rows.values(),
                key=lambda row: (
                    order.index(row.effect),
                    -row.count,
                    row.principal,
                    row.operation,
                    row.target,
                    row.job,
                ),
            )
        )

    @property
    def changes(self) -> bool:
        """Whether any decision would change."""
        return bool(self._rows)

    def _take_request(self, record: AuditRecord, when: dt.datetime) -> None:
        if record.decision != "allow" and record.status != 403:
            return
        if record.operation not in self._operations:
            return
        self._take_judged(record, self._judged(record, self._judge_request), when, 1)

    def _take_egress(self, record: AuditRecord) -> None:
        when = event_time(record)
        if record.principal and (self.since is None or when >= self.since):
            self._take_judged(record, self._judged(record, self._judge_egress), when, count_of(record))

    def _take_judged(self, record: AuditRecord, found: _Judgement | None, when: dt.datetime, times: int) -> None:
        if found is None:
            self.unknown += times
            return
        self.decided += times
        if found.effect is None:
            return
        out = found.operation == EGRESS_OPERATION
        row = DecisionChange(found.effect, record.principal, found.operation, found.reason, when, when)
        if out:
            row.target, row.job = record.path, job_of(record)
        self._note(row, times)

    def _judged(self, record: AuditRecord, judge: Callable[[AuditRecord], _Judgement | None]) -> _Judgement | None:
        """The cached result of ``judge``. Most records are similar to an earlier one."""
        out = is_egress(record)
        key = (
            record.principal,
            record.credential if not out else "",
            record.roles,
            record.groups,
            record.operation,
            record.decision,
            (record.path, job_of(record), was_allowed(record)) if out else (),
        )
        if key not in self._judgements:
            if len(self._judgements) >= MAX_REMEMBERED:
                self._judgements.clear()
            self._judgements[key] = judge(record)
        return self._judgements[key]

    def _judge_request(self, record: AuditRecord) -> _Judgement | None:
        before = self.requesters.principal_under(self.requesters.current, record)
        principal = self.requesters.principal_under(self.policy, record)
        if before is None or principal is None:
            return None
        allowed = record.decision == "allow"
        ruling = self.policy.rule(principal, record.operation)
        would = ruling.verdict
        if would is Verdict.OWN and record.operation not in OWNED_OPERATIONS:
            would = Verdict.DENY
        effect: Effect | None = None
        if allowed and would is Verdict.DENY:
            effect = Effect.REFUSED
        elif allowed and would is Verdict.OWN:
            now = self.requesters.current.rule(before, record.operation).verdict
            effect = Effect.OWN_ONLY if now is Verdict.ALLOW else None
        elif not allowed and would is not Verdict.DENY:
            effect = Effect.ALLOWED
        return _Judgement(effect, record.operation, ruling.reason)

    def _judge_egress(self, record: AuditRecord) -> _Judgement | None:
        before = self.requesters.principal_under(self.requesters.current, record)
        principal = self.requesters.principal_under(self.policy, record)
        if before is None or principal is None:
            return None
        job = job_of(record)
        ruling = _ruling(self.policy, _subject(record, principal, job), record)
        current = _ruling(self.requesters.current, _subject(record, before, job), record)
        effect: Effect | None = None
        if was_allowed(record) and not ruling.allowed:
            effect = Effect.REFUSED
        elif not was_allowed(record) and ruling.allowed and not current.allowed:
            effect = Effect.ALLOWED
        return _Judgement(effect, EGRESS_OPERATION, ruling.reason)

    def _note(self, found: DecisionChange, times: int = 1) -> None:
        key = (found.effect, found.principal, found.operation, found.target, found.job)
        if key not in self._rows and len(self._rows) >= MAX_ROWS:
            self.left_out += times
            return
        self._rows.setdefault(key, found).note(found.first, times)


def _ruling(policy: Policy, subject: EgressSubject, record: AuditRecord) -> EgressRuling:
    rules = policy.egress_rules
    return (
        rules.decide_any_port(subject, record.path) if is_name(record) else rules.decide_authority(subject, record.path)
    )


def _subject(record: AuditRecord, owner: Principal, job: str) -> EgressSubject:
    return EgressSubject(record.credential, job, owner.name, owner.roles, owner.groups)
