"""What a changed policy would have decided about recorded requests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec
import pytest

from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.authz.policy import Policy
from sluice.gateway.authz.policy_file import parse
from sluice.gateway.credentials.api_tokens import TokenRecord
from sluice.gateway.credentials.users import PasswordHash, UserRecord
from sluice.gateway.policy_replay import Effect, Replay, Requesters, replay as module
from sluice.pki.assertions import TokenId

OPERATIONS = ("jobs.list", "jobs.cancel", "jobs.submit", "overview.read")
CURRENT = b"""
version = 1
default_roles = ["guest"]
[roles.guest]
allow = ["overview.read"]
[roles.operator]
allow = ["jobs.*"]
[roles.submitter]
allow = ["jobs.submit"]
allow_own = ["jobs.list", "jobs.cancel"]
[groups]
ops = ["operator"]
[users]
ada = ["operator"]
"""
EGRESS = b"""
[[egress]]
to = ["api.example.com:443", "*.s3.example.com:443"]
roles = ["operator"]
[[egress]]
to = ["db.example.com:5432"]
jobs = ["nightly-*"]
"""
TIME = "2026-03-01T12:00:00.000Z"


def policy(text: bytes = CURRENT) -> Policy:
    return parse(text, OPERATIONS)


def changed(old: bytes, new: bytes) -> Policy:
    assert old in CURRENT
    return policy(CURRENT.replace(old, new))


def request(principal: str, operation: str, **more: object) -> AuditRecord:
    fields: dict[str, object] = {"event": "decision", "decision": "allow", "status": 200, "time": TIME} | more
    return AuditRecord(principal=principal, operation=operation, **fields)  # type: ignore[arg-type]  # by name


def replayed(new: Policy, records: Sequence[AuditRecord], **known: object) -> Replay:
    found = Replay(new, Requesters(policy(), **known))  # type: ignore[arg-type]  # by name
    for record in records:
        found.take(record)
    return found


def user(name: str, roles: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> UserRecord:
    hashed = PasswordHash(salt="", digest="")
    return UserRecord(name=name, password=hashed, changed_at=0, created_at=0, roles=roles, groups=groups)


ADA = request("ada", "jobs.cancel", roles=("operator", "guest"))


def test_replaying_the_same_policy_reports_no_changes() -> None:
    found = replayed(policy(), [ADA, request("ada", "overview.read", roles=("operator", "guest"))])
    assert (found.changes, found.decided, found.unknown) == (False, 2, 0)


def test_a_removed_grant_is_reported_as_refused() -> None:
    later = request("ada", "jobs.cancel", roles=("operator", "guest"), time="2026-03-02T12:00:00.000Z")
    found = replayed(changed(b'ada = ["operator"]', b""), [later, ADA])
    (row,) = found.rows
    assert (row.effect, row.principal, row.operation, row.count) == (Effect.REFUSED, "ada", "jobs.cancel", 2)
    assert (row.first.day, row.last.day) == (1, 2)
    assert row.reason == "no role allows it"


def test_a_grant_reduced_to_own_jobs_is_reported_as_own_only() -> None:
    found = replayed(changed(b'ada = ["operator"]', b'ada = ["submitter"]'), [ADA])
    assert [row.effect for row in found.rows] == [Effect.OWN_ONLY]
    # Whoever had it for the own jobs only loses nothing.
    eve = request("eve", "jobs.cancel", roles=("submitter",))
    assert not replayed(changed(b'ada = ["operator"]', b""), [eve]).changes


def test_a_new_grant_is_reported_as_allowed() -> None:
    refused = request("eve", "jobs.submit", decision="deny", status=403, roles=("guest",))
    found = replayed(changed(b'allow = ["overview.read"]', b'allow = ["overview.read", "jobs.submit"]'), [refused])
    assert [(row.effect, row.principal) for row in found.rows] == [(Effect.ALLOWED, "eve")]


def test_group_roles_change_with_the_policy_and_credential_roles_stay() -> None:
    by_group = request("bob", "jobs.cancel", roles=("operator", "guest"), groups=("ops",))
    by_certificate = request("bob", "jobs.cancel", roles=("operator", "guest"))
    found = replayed(changed(b'ops = ["operator"]', b""), [by_group])
    assert [row.effect for row in found.rows] == [Effect.REFUSED]
    assert not replayed(changed(b'ops = ["operator"]', b""), [by_certificate]).changes


def test_a_token_has_its_own_role_and_scopes() -> None:
    token = TokenRecord(
        id=TokenId("t1"), name="ada", role="submitter", sha256="", created_at=0, expires_at=9, scopes=("jobs.submit",)
    )
    by_token = [
        request("ada", "jobs.submit", credential="t1", roles=("submitter",)),
        request("ada", "jobs.cancel", credential="t1", roles=("submitter",), decision="deny", status=403),
    ]
    # ada herself becomes an admin; her token does not.
    new = changed(b'[roles.submitter]\nallow = ["jobs.submit"]', b"[roles.submitter]\nallow = []")
    found = replayed(new, by_token, tokens={"t1": token})
    assert [(row.effect, row.operation) for row in found.rows] == [(Effect.REFUSED, "jobs.submit")]


def test_the_user_file_supplies_roles_that_the_log_does_not_name() -> None:
    record = request("kim", "jobs.submit")
    found = replayed(policy(), [record])
    assert (found.unknown, found.decided) == (1, 0)
    found = replayed(
        changed(b'allow = ["jobs.submit"]', b"allow = []"), [record], users={"kim": user("kim", ("submitter",))}
    )
    assert [row.effect for row in found.rows] == [Effect.REFUSED]


@pytest.mark.parametrize(
    "record",
    [
        request("", "jobs.cancel"),
        request("ada", "", decision="deny", status=404),
        request("ada", "jobs.cancel", decision="deny", status=401),
        request("ada", "auth.whoami"),
        request("ada", "jobs.cancel", event="traffic", decision=""),
        request("ada", "jobs.cancel", event="traffic", detail={"asked": "jobs.cancel"}),
        AuditRecord(event="act", kind="token.created", principal="ada", time=TIME),
    ],
)
def test_records_that_the_policy_did_not_decide_are_left_out(record: AuditRecord) -> None:
    found = replayed(changed(b'ada = ["operator"]', b""), [record])
    assert (found.changes, found.decided, found.unknown) == (False, 0, 0)


def test_requests_before_the_start_time_are_left_out() -> None:
    found = Replay(
        changed(b'ada = ["operator"]', b""), Requesters(policy()), since=dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
    )
    found.take(ADA)
    assert not found.changes
    found.take(request("ada", "jobs.cancel", event="traffic", roles=("operator",), at="2026-03-02T00:00:01.000Z"))
    assert found.changes


def test_rows_are_bounded_and_omitted_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    found = replayed(
        changed(b"[roles.operator]\nallow = [", b"[roles.operator]\ndeny = ["),
        [request(f"u{number}", "jobs.cancel", roles=("operator",)) for number in range(5)]
        + [request("u0", "jobs.cancel", roles=("operator",))],
    )
    assert (len(found.rows), found.left_out) == (3, 2)
    assert found.rows[0].count == 2


def connection(path: str, **more: object) -> AuditRecord:
    fields: dict[str, object] = {
        "path": path,
        "method": "CONNECT",
        "credential": "a" * 32,
        "roles": ("operator", "guest"),
        "detail": {"job": "nightly-1"},
    } | more
    return msgspec.structs.replace(request("ada", "egress.connect"), **fields)


def replayed_egress(old: bytes, new: bytes, *records: AuditRecord) -> Replay:
    assert old in EGRESS
    found = Replay(policy(CURRENT + EGRESS.replace(old, new)), Requesters(policy(CURRENT + EGRESS)))
    for record in records:
        found.take(record)
    return found


def test_egress_replay_of_the_same_policy_reports_no_changes() -> None:
    found = replayed_egress(b"", b"", connection("api.example.com:443"), connection("db.example.com:5432"))
    assert (found.changes, found.decided) == (False, 2)


def test_egress_refusals_are_reported_by_destination_and_job() -> None:
    found = replayed_egress(
        b'"api.example.com:443", ',
        b"",
        connection("api.example.com:443"),
        connection("api.example.com:443"),
        connection("api.example.com:443", detail={"job": "weekly"}),
        connection("b.s3.example.com:443"),
    )
    assert [(row.effect, row.target, row.job, row.count) for row in found.rows] == [
        (Effect.REFUSED, "api.example.com:443", "nightly-1", 2),
        (Effect.REFUSED, "api.example.com:443", "weekly", 1),
    ]
    assert {row.operation for row in found.rows} == {"egress.connect"}


def test_egress_connections_that_would_be_newly_allowed_are_counted() -> None:
    refused = {"decision": "deny", "status": 403, "reason": "no rule allows it"}
    audited = connection("new.example.com:443", reason="audit: would be refused: no rule allows it")
    at_the_box = connection("new.example.com:443", event="egress", method="TCP", decision="deny", status=0)
    at_the_box = msgspec.structs.replace(at_the_box, detail={"job": "nightly-1", "count": "40"})
    found = replayed_egress(
        b"to = [", b'to = ["new.example.com:443", ', connection("new.example.com:443", **refused), audited, at_the_box
    )
    (row,) = found.rows
    assert (row.effect, row.target, row.count) == (Effect.ALLOWED, "new.example.com:443", 42)


def test_egress_refusal_of_a_dns_name_is_replayed_for_any_port() -> None:
    refused = {"event": "egress", "method": "DNS", "decision": "deny", "status": 0, "reason": "not_allowed"}
    found = replayed_egress(
        b"to = [",
        b'to = ["new.example.com:5432", ',
        connection("new.example.com", **refused),
        connection("other.example.com", **refused),
        connection("new.example.com", **(refused | {"reason": "not_decided"})),
    )
    (row,) = found.rows
    assert (row.effect, row.target, row.count) == (Effect.ALLOWED, "new.example.com", 1)


def test_egress_refusal_because_of_a_lost_role_is_reported() -> None:
    new = policy((CURRENT + EGRESS).replace(b'ada = ["operator"]', b""))
    found = Replay(new, Requesters(policy(CURRENT + EGRESS)))
    found.take(connection("api.example.com:443"))
    found.take(connection("db.example.com:5432"))
    assert [(row.effect, row.target) for row in found.rows] == [(Effect.REFUSED, "api.example.com:443")]


@pytest.mark.parametrize(
    "record",
    [
        # Allowed by name, refused for the address that it led to: no policy of names changes that.
        connection("api.example.com:443", decision="deny", status=403, reason="allowed, but not at 10.0.0.1"),
        connection("api.example.com:443", decision="deny", status=502, reason="no such name"),
        connection("api.example.com:443", event="egress", method="TCP"),  # the proxy's decision is there, too
        connection("api.example.com:443", event="egress", method="UDP", decision="deny"),
        connection("api.example.com:443", principal=""),
    ],
)
def test_egress_records_that_the_policy_did_not_decide_are_left_out(record: AuditRecord) -> None:
    assert not replayed_egress(b"*.s3.example.com:443", b"*.s4.example.com:443", record).changes
