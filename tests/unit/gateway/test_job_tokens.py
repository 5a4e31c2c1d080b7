"""Tokens of jobs: the policy in force decides, and the decision is audited before anyone receives it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sluice.core.errors import SluiceError
from sluice.core.home import Home
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import audit_directory
from sluice.gateway.audit_log.verification import read_records
from sluice.gateway.config import GatewayConfig
from sluice.gateway.job_tokens import decode_query, job_tokens_in
from sluice.pki.jwt.token_query import AskForToken, TokenQuery

POLICY = """
version = 1
[roles.submitter]
allow = []
[[audiences]]
audience = ["vault"]
roles = ["submitter"]
"""
QUERY = TokenQuery(
    job_id="a" * 32,
    job_name="nightly",
    subject=f"spiffe://td/job/{'a' * 32}/driver",
    owner="ada",
    roles=("submitter",),
    groups=(),
    audience=("vault",),
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path).create()
    policy = home.gateway / "policy.toml"
    policy.write_text(POLICY)
    policy.chmod(0o600)
    return home


@pytest.fixture
def ask(home: Home) -> AskForToken:
    return job_tokens_in(home, GatewayConfig(), frozenset)


def decisions(home: Home) -> list[AuditRecord]:
    return [each for each in read_records(audit_directory(home)) if each.event == "decision"]


async def test_a_token_that_the_policy_allows_is_granted_and_recorded(home: Home, ask: AskForToken) -> None:
    verdict = await ask(QUERY)
    assert (verdict.allowed, verdict.reason) == (True, "audiences[1] allows it")
    (record,) = decisions(home)
    assert (record.decision, record.operation, record.principal, record.credential, record.path) == (
        "allow",
        "jobs.token",
        "ada",
        "a" * 32,
        "vault",
    )
    assert record.detail == {"job": "nightly", "subject": QUERY.subject}


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(msgspec.structs.replace(QUERY, audience=("vault", "payroll")), id="another audience too"),
        pytest.param(msgspec.structs.replace(QUERY, roles=("viewer",)), id="another role"),
        pytest.param(msgspec.structs.replace(QUERY, roles=(), groups=("submitter",)), id="a group of that name"),
        pytest.param(msgspec.structs.replace(QUERY, audience=("vault payroll",)), id="two in one"),
    ],
)
async def test_a_token_that_the_policy_does_not_allow_is_refused_and_recorded(
    home: Home, ask: AskForToken, query: TokenQuery
) -> None:
    assert not (await ask(query)).allowed
    (record,) = decisions(home)
    assert (record.decision, record.status) == ("deny", 403)


async def test_a_changed_policy_takes_effect_at_once(home: Home, ask: AskForToken) -> None:
    assert (await ask(QUERY)).allowed
    (home.gateway / "policy.toml").write_text(POLICY.replace('["vault"]', '["vault-2"]'))
    assert not (await ask(QUERY)).allowed


async def test_an_invalid_policy_is_an_error(home: Home, ask: AskForToken) -> None:
    (home.gateway / "policy.toml").write_text("version = 2")
    with pytest.raises(SluiceError):
        await ask(QUERY)


@pytest.mark.parametrize(
    "change",
    [{"audience": []}, {"audience": ["a"] * 9}, {"owner": "a" * 1025}, {"surprise": 1}, {"roles": "submitter"}],
)
def test_a_malformed_or_oversized_token_query_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_query(msgspec.json.encode({**msgspec.to_builtins(QUERY), **change}))
