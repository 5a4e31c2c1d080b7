"""Job tokens at the JobManager: the JobMaster states the subject, the gateway decides on the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.core.errors import AssertionRefused
from sluice.pki.ca.protocol import TokenKeysAnswer
from sluice.pki.jwt.token_query import TokenQuery, TokenVerdict
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.jobmanager.attempt.services.job_tokens import KEYS_SECONDS, TOKENS_PER_JOB, JobTokens
from sluice.runtime.jobmanager.errors import TokenRefused
from sluice.runtime.messages import BlobRef, JobSubmission

JOB = "a" * 32
SUBMISSION = JobSubmission(
    name="spiffe://td/job/other/driver",
    owner="ada",
    owner_roles=("submitter",),
    owner_groups=("eng",),
    pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1),
)


class Gateway:
    """A fake gateway that allows only the audience ``vault``."""

    def __init__(self) -> None:
        self.queries: list[TokenQuery] = []
        self.away = False

    async def ask(self, query: TokenQuery) -> TokenVerdict:
        """Return the decision on a query."""
        if self.away:
            raise AssertionRefused("no answer")
        self.queries.append(query)
        return TokenVerdict(allowed=query.audience == ("vault",), reason="because")


class Authority:
    """A fake authority that records the tokens it is asked to sign."""

    def __init__(self) -> None:
        self.signed: list[tuple[str, tuple[str, ...], str]] = []
        self.told = 0

    async def sign_token(self, spiffe_id: SpiffeId, audience: Sequence[str], owner: str) -> str:
        """Record the request and return a token."""
        self.signed.append((str(spiffe_id), tuple(audience), owner))
        return "t"

    async def keys(self) -> TokenKeysAnswer:
        """Count the request and return an empty key set."""
        self.told += 1
        return TokenKeysAnswer(jwks="{}")


class World:
    """``JobTokens`` with a fake gateway, a fake authority and a clock."""

    def __init__(self) -> None:
        self.gateway, self.authority, self.now = Gateway(), Authority(), 0.0
        self.tokens = JobTokens(self.gateway.ask, self.authority, "td", lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


async def test_the_subject_of_a_token_is_the_launched_driver_or_executor(world: World) -> None:
    assert (await world.tokens.of_driver(JOB, SUBMISSION, ["vault", "vault"])).token == "t"  # noqa: S105
    await world.tokens.of_executor(JOB, 7, SUBMISSION, ["vault"])
    driver, executor = f"spiffe://td/job/{JOB}/driver", f"spiffe://td/job/{JOB}/executor/7"
    assert world.authority.signed == [(driver, ("vault",), "ada"), (executor, ("vault",), "ada")]
    assert [(query.subject, query.roles, query.groups) for query in world.gateway.queries] == [
        (driver, ("submitter",), ("eng",)),
        (executor, ("submitter",), ("eng",)),
    ]


async def test_a_token_that_the_policy_refuses_is_not_signed(world: World) -> None:
    with pytest.raises(TokenRefused, match="because"):
        await world.tokens.of_driver(JOB, SUBMISSION, ["payroll"])
    assert world.authority.signed == []


async def test_no_token_is_signed_if_the_gateway_does_not_answer(world: World) -> None:
    world.gateway.away = True
    with pytest.raises(AssertionRefused):
        await world.tokens.of_driver(JOB, SUBMISSION, ["vault"])
    assert world.authority.signed == []


@pytest.mark.parametrize("audience", [[], [""], ["a" * 513], [f"a{n}" for n in range(9)]])
async def test_impossible_audiences_are_refused_without_asking_the_gateway(world: World, audience: list[str]) -> None:
    with pytest.raises(TokenRefused):
        await world.tokens.of_driver(JOB, SUBMISSION, audience)
    assert world.gateway.queries == []


async def test_a_job_beyond_its_token_rate_is_refused_without_affecting_other_jobs(world: World) -> None:
    for _ in range(int(TOKENS_PER_JOB[0])):
        with pytest.raises(TokenRefused, match="because"):
            await world.tokens.of_driver(JOB, SUBMISSION, ["payroll"])
    asked = len(world.gateway.queries)
    for number in range(10):
        with pytest.raises(TokenRefused, match="too many"):
            await world.tokens.of_executor(JOB, number, SUBMISSION, ["vault"])
    assert len(world.gateway.queries) == asked
    await world.tokens.of_driver("b" * 32, SUBMISSION, ["vault"])
    world.now += 1 / TOKENS_PER_JOB[1]
    await world.tokens.of_driver(JOB, SUBMISSION, ["vault"])


async def test_the_jwt_keys_are_cached_and_fetched_again_periodically(world: World) -> None:
    await world.tokens.keys()
    await world.tokens.keys()
    assert world.authority.told == 1
    world.now += KEYS_SECONDS
    await world.tokens.keys()
    assert world.authority.told == 2
