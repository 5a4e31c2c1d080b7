"""Connection rows are recorded once in the audit log; the current policy decides open destinations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sluice.core.egress_evidence import (
    ANY_PORT,
    EgressJob,
    EgressQuestion,
    EgressRow,
    EgressTarget,
    EgressVerdict,
    ReportedRow,
)
from sluice.core.home import Home
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import AuditLog, audit_directory, audit_file
from sluice.gateway.audit_log.verification import read_records, verify_log
from sluice.gateway.authz import EgressRuling, Policy, PolicyFile
from sluice.gateway.config import GatewayConfig
from sluice.gateway.egress_evidence import EgressEvidence, egress_evidence_in
from sluice.gateway.egress_evidence.narrowing import MAX_DESTINATIONS, REFUSE_SECONDS, Narrowing
from sluice.gateway.errors import AuditLogError, PolicyError

JOB = EgressJob(id="j1", name="nightly", owner="ada", roles=("submitter",), groups=("data",))
POLICY = """
version = 1
[roles.submitter]
allow = ["jobs.submit"]
[[egress]]
to = ["api.example.com:443", "*.s3.example.com:443", "10.1.0.0/16:5432"]
roles = ["submitter"]
"""
OPERATIONS = frozenset({"jobs.submit"})


def told(number: int, **more: object) -> ReportedRow:
    fields: dict[str, object] = {
        "id": f"{number:032x}",
        "job_id": "j1",
        "attempt": 2,
        "process": "executor/3",
        "protocol": "tcp",
        "host": "api.example.com",
        "address": "",
        "port": 443,
        "verdict": EgressVerdict.ALLOWED,
        "opened_at": 1_772_366_400.0,
        "bytes_up": 10,
        "bytes_down": 20,
        "duration_ms": 30,
    } | more
    return ReportedRow(row=EgressRow(**fields), reporter="taskmanager/tm-1")  # type: ignore[arg-type]  # by name


def target(host: str, port: int = 443, job: str = "j1") -> EgressTarget:
    return EgressTarget(job_id=job, host=host, port=port)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path / "home")
    home.create()
    write_policy(home, POLICY)
    return home


def write_policy(home: Home, text: str) -> None:
    home.gateway.mkdir(mode=0o700, exist_ok=True)
    staged = home.gateway / "policy.new"
    staged.write_text(text)
    staged.chmod(0o600)
    staged.rename(home.gateway / "policy.toml")


def rows_in(home: Home) -> list[AuditRecord]:
    return [each for each in read_records(audit_directory(home)) if each.event in {"egress", "gap"}]


async def test_connection_rows_become_audit_records_of_the_job_owner(home: Home) -> None:
    ask = egress_evidence_in(home, GatewayConfig(), OPERATIONS)
    refused = told(2, verdict=EgressVerdict.REFUSED, protocol="udp", host="", address="2001:db8::7", reason="no rule")
    await ask(EgressQuestion(jobs=(JOB,), rows=(told(1), refused)))
    first, second = rows_in(home)
    assert (first.principal, first.credential, first.operation) == ("ada", "j1", "egress.connection")
    assert (first.method, first.path, first.decision) == ("TCP", "api.example.com:443", "allow")
    assert (first.at, first.roles, first.groups) == ("2026-03-01T12:00:00.000Z", ("submitter",), ("data",))
    assert first.detail == {
        "id": f"{1:032x}",
        "job": "nightly",
        "attempt": "2",
        "process": "executor/3",
        "reporter": "taskmanager/tm-1",
        "verdict": "allowed",
        "count": "1",
        "bytes_up": "10",
        "bytes_down": "20",
        "duration_ms": "30",
    }
    assert (second.method, second.path, second.address) == ("UDP", "[2001:db8::7]:443", "2001:db8::7")
    assert (second.decision, second.reason) == ("deny", "no rule")


async def test_a_repeated_row_is_recorded_once_even_after_a_restart(home: Home) -> None:
    for _ in range(2):
        ask = egress_evidence_in(home, GatewayConfig(), OPERATIONS)
        for _ in range(2):
            await ask(EgressQuestion(jobs=(JOB,), rows=(told(1), told(1), told(2))))
    assert len(rows_in(home)) == 2


async def test_many_rows_are_all_recorded_and_lost_rows_leave_a_gap_record(home: Home) -> None:
    ask = egress_evidence_in(home, GatewayConfig(), OPERATIONS)
    rows = tuple(told(number) for number in range(1200))
    await ask(EgressQuestion(jobs=(JOB,), rows=rows, lost={"taskmanager/tm-1": 7, "taskmanager/tm-2": 0}))
    found = rows_in(home)
    assert [each.event for each in found].count("egress") == 1200
    (gap,) = (each for each in found if each.event == "gap")
    assert gap.detail == {"reporter": "taskmanager/tm-1", "rows": "7"}
    assert verify_log(audit_directory(home)).state.count >= 1201


async def test_secrets_in_requested_host_names_are_not_recorded(home: Home) -> None:
    shown = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"
    await egress_evidence_in(home, GatewayConfig(), OPERATIONS)(
        EgressQuestion(jobs=(JOB,), rows=(told(1, host=f"{shown}.example.com", verdict=EgressVerdict.REFUSED),))
    )
    assert shown not in audit_file(home).read_text()


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("api.example.com", 443, True),
        ("API.example.com", 443, True),
        ("api.example.com", 22, False),
        ("bucket.s3.example.com", 443, True),
        ("s3.example.com.evil.org", 443, False),
        ("10.1.2.3", 5432, True),
        ("10.2.2.3", 5432, False),
        ("", 443, False),
        ("\x00", 443, False),
    ],
)
async def test_destinations_are_decided_by_the_policy(home: Home, host: str, port: int, allowed: bool) -> None:
    ask = egress_evidence_in(home, GatewayConfig(), OPERATIONS)
    answer = await ask(EgressQuestion(jobs=(JOB,), targets=(target(host, port),)))
    assert answer.allowed == (allowed,)


async def test_a_changed_policy_applies_to_the_next_request_and_an_invalid_one_is_ignored(home: Home) -> None:
    ask = egress_evidence_in(home, GatewayConfig(), OPERATIONS)
    question = EgressQuestion(jobs=(JOB,), targets=(target("api.example.com"), target("x.s3.example.com")))
    assert (await ask(question)).allowed == (True, True)
    write_policy(home, POLICY.replace('"api.example.com:443", ', ""))
    assert (await ask(question)).allowed == (False, True)
    write_policy(home, POLICY.replace('["submitter"]\n', '["nobody"]\n'))
    assert (await ask(question)).allowed == (False, True), "an invalid policy leaves the previous one in force"


async def test_a_job_that_is_unknown_or_has_no_owner_may_not_connect_anywhere(home: Home) -> None:
    write_policy(home, POLICY.replace('roles = ["submitter"]', 'users = ["*"]'))
    ask = egress_evidence_in(home, GatewayConfig(), OPERATIONS)
    nobody = EgressJob(id="j2", name="nightly", owner="")
    targets = (target("api.example.com"), target("api.example.com", job="j2"), target("api.example.com", job="j3"))
    assert (await ask(EgressQuestion(jobs=(JOB, nobody), targets=targets))).allowed == (True, False, False)


async def test_a_request_fails_when_the_audit_log_cannot_be_written(home: Home) -> None:
    with contextlib.closing(AuditLog(audit_file(home))):
        pass
    for path in audit_directory(home).glob("signing-key.pem"):
        path.unlink()
    with pytest.raises(AuditLogError):
        await egress_evidence_in(home, GatewayConfig(), OPERATIONS)(EgressQuestion(jobs=(JOB,), rows=(told(1),)))


async def test_rows_are_written_on_the_next_request_after_a_failed_write() -> None:
    written: list[AuditRecord] = []
    fail = [True]

    async def append(records: Sequence[AuditRecord]) -> None:
        if fail:
            fail.clear()
            raise AuditLogError("no space")
        written.extend(records)

    def nothing(_: int) -> Iterator[AuditRecord]:
        return iter(())

    def no_policy() -> Policy:
        raise PolicyError("there is none")

    evidence = EgressEvidence(no_policy, append, nothing)
    question = EgressQuestion(jobs=(JOB,), rows=(told(1),))
    with pytest.raises(AuditLogError):
        await evidence.answer(question)
    with pytest.raises(PolicyError):
        await evidence.answer(question)
    assert len(written) == 1


async def test_a_name_resolves_for_a_job_if_any_of_its_ports_is_allowed(home: Home) -> None:
    ask = egress_evidence_in(home, GatewayConfig(), OPERATIONS)
    names = ("api.example.com", "a.s3.example.com", "s3.example.com", "10.1.2.3", "other.example.com", "a b")
    answer = await ask(EgressQuestion(jobs=(JOB,), targets=tuple(target(each, ANY_PORT) for each in names)))
    assert answer.allowed == (True, True, False, True, False, False)


NARROW = """
version = 1
[roles.submitter]
allow = ["jobs.submit"]
[[egress]]
to = ["api.example.com:443", "10.1.0.0/16:5432"]
users = ["ada"]
protocol = "{protocol}"
addresses = {addresses}
"""


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        ('["203.0.113.0/24", "10.0.0.0/8"]', '["203.0.113.0/24"]', True),
        ('["203.0.113.0/24"]', '["198.51.100.0/24"]', True),
        ('["203.0.113.0/24"]', '["203.0.113.0/24", "198.51.100.0/24"]', False),
        ('["203.0.113.0/24"]', "[]", True),
        ("[]", '["203.0.113.0/24"]', True),
    ],
)
async def test_connections_end_when_rules_for_their_destination_become_narrower(
    home: Home, before: str, after: str, ends: bool
) -> None:
    now = 0.0
    policies = PolicyFile(lambda: home.gateway / "policy.toml", lambda: OPERATIONS)

    async def append(records: Sequence[AuditRecord]) -> None:
        raise AssertionError(records)

    evidence = EgressEvidence(policies.get, append, lambda _: (), clock=lambda: now)

    async def allowed() -> tuple[bool, ...]:
        targets = (target("api.example.com"), target("10.1.2.3", 5432))
        return (await evidence.answer(EgressQuestion(jobs=(JOB,), targets=targets))).allowed

    write_policy(home, NARROW.format(protocol="auto", addresses=before))
    assert await allowed() == await allowed() == (True, True)
    write_policy(home, NARROW.format(protocol="auto", addresses=after))
    assert await allowed() == await allowed() == (not ends, True)
    now += REFUSE_SECONDS
    assert await allowed() == (True, True), "the next connection is decided by the rules of now"
    write_policy(home, NARROW.format(protocol="tls", addresses=after))
    assert await allowed() == (False, False), "what was spoken before was not looked at as TLS"


def test_the_number_of_remembered_destinations_is_bounded() -> None:
    narrowing = Narrowing(lambda: 0.0)
    for port in range(1, 65_000):
        assert not narrowing.refuses(target("api.example.com", port), EgressRuling(True, ""))
    assert len(narrowing._seen) == MAX_DESTINATIONS
