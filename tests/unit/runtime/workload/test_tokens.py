"""The tokens of a process: kept, requested only once, and bounded."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.pki.jwt.svid import JwtKey, jwks, sign_token
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.workload.place import TokenFile, WorkloadPlace
from sluice.runtime.workload.tokens import ASKED_PER_PROCESS, KEYS_SECONDS, ProcessTokens, TokenUnavailable, lifetime_of

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
KEY = JwtKey.generate(NOW)
ME = SpiffeId.driver("td", "a" * 32)
LIFETIME = dt.timedelta(minutes=5)


class JobManager:
    """A fake JobManager that signs whatever it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.keys_asked = 0
        self.away = False

    async def token(self, audience: tuple[str, ...]) -> str:
        """Return a signed token, or fail if ``away`` is set."""
        await asyncio.sleep(0)
        self.asked.append(audience)
        if self.away:
            raise StoreError("away")
        return sign_token(KEY, ME, audience, NOW, LIFETIME)

    async def keys(self) -> str:
        """Return the public keys, or fail if ``away`` is set."""
        self.keys_asked += 1
        if self.away:
            raise StoreError("away")
        return jwks((KEY,)).decode()


class World:
    """The tokens of a process, a fake JobManager and a clock."""

    def __init__(self) -> None:
        self.jobmanager, self.now = JobManager(), 0.0
        self.tokens = ProcessTokens(
            ME, self.jobmanager.token, self.jobmanager.keys, clock=lambda: NOW, monotonic=lambda: self.now
        )


@pytest.fixture
def world() -> World:
    return World()


async def test_concurrent_requests_for_a_token_make_one_call(world: World) -> None:
    found = await asyncio.gather(*(world.tokens.token(["b", "a"]) for _ in range(50)))
    assert len({each.text for each in found}) == 1
    assert world.jobmanager.asked == [("a", "b")]


async def test_a_token_is_replaced_at_half_of_its_life(world: World) -> None:
    await world.tokens.token(["a"])
    world.now = 149
    await world.tokens.token(["a"])
    assert len(world.jobmanager.asked) == 1
    world.now = 150
    await world.tokens.token(["a"])
    assert len(world.jobmanager.asked) == 2


async def test_requests_for_different_audiences_get_different_tokens(world: World) -> None:
    one, both = await world.tokens.token(["a"]), await world.tokens.token(["a", "b"])
    assert one.text != both.text


async def test_cancelling_one_waiting_request_does_not_cancel_the_others(world: World) -> None:
    first = asyncio.ensure_future(world.tokens.token(["a"]))
    second = asyncio.ensure_future(world.tokens.token(["a"]))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).text
    assert len(world.jobmanager.asked) == 1


async def test_a_flood_of_token_requests_is_rate_limited_before_the_jobmanager(world: World) -> None:
    await world.tokens.token(["a"])
    refused = 0
    for number in range(100):
        try:
            await world.tokens.token([f"x{number}"])
        except TokenUnavailable:
            refused += 1
    assert len(world.jobmanager.asked) == ASKED_PER_PROCESS[0]
    assert refused == 101 - ASKED_PER_PROCESS[0]


async def test_tokens_are_validated_with_cached_keys_while_the_jobmanager_is_unavailable(world: World) -> None:
    token = (await world.tokens.token(["a"])).text
    assert (await world.tokens.validate(token, "a"))[0] == ME
    world.jobmanager.away = True
    world.now = KEYS_SECONDS
    assert (await world.tokens.validate(token, "a"))[0] == ME
    assert world.jobmanager.keys_asked == 2
    with pytest.raises(TokenUnavailable):
        await World().tokens.token([])


async def test_an_error_of_the_jobmanager_is_raised_and_not_cached(world: World) -> None:
    world.jobmanager.away = True
    with pytest.raises(TokenUnavailable, match="away"):
        await world.tokens.token(["a"])
    world.jobmanager.away = False
    assert (await world.tokens.token(["a"])).text
    assert "ey" not in repr(await world.tokens.token(["a"])), "a token is not shown"


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "a.e30.c", "a.eyJpYXQiOiJ4In0.c"])
def test_a_malformed_token_is_refused(text: str) -> None:
    with pytest.raises(TokenUnavailable):
        lifetime_of(text)


def test_the_first_token_file_with_a_role_is_used_for_aws() -> None:
    place = WorkloadPlace(Path("/t/w"))
    assert place.environment() == {"SPIFFE_ENDPOINT_SOCKET": "unix:///t/w/api.sock"}
    files = [
        TokenFile(audience="vault", name="vault"),
        TokenFile(audience="sts", name="aws", aws_role_arn="arn:aws:iam::1:role/x"),
        TokenFile(audience="sts2", name="aws2", aws_role_arn="arn:aws:iam::1:role/y"),
    ]
    assert place.environment(files) == {
        "SPIFFE_ENDPOINT_SOCKET": "unix:///t/w/api.sock",
        "SLUICE_TOKEN_DIRECTORY": "/t/w/tokens",
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/x",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/t/w/tokens/aws",
    }
