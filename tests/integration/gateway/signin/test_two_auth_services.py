"""Two auth services of one home: each continues, once, what the other began; both need the store."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from sluice.gateway.credentials.access_tokens import CSRF_COOKIE
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.credentials.users import UserStore
from sluice.gateway.shared_store.sqlite import shared_store_file
from sluice.gateway.signin.device import GRANT_TYPE
from sluice.gateway.signin.throttle import FREE_FAILURES

from .conftest import ORIGIN, Browser, House, Start

NOW = 1_900_000_000.0
PASSWORD = "correct horse battery"  # noqa: S105  of the test's own user


@pytest.fixture
async def two(start: Start) -> tuple[House, House]:
    """Two auth services of one home that accept the provider and a local user."""
    houses = await start(), await start()
    UserStore(houses[0].home).add("grace", PASSWORD, roles=("submitter",), groups=())
    return houses


def at(house: House, browser: Browser) -> Browser:
    """Return the same browser, pointed at another auth service."""
    return Browser(house.base, browser.session, browser.cookies)


async def test_a_session_is_valid_and_ends_at_both_auth_services(two: tuple[House, House]) -> None:
    one, other = two
    browser = one.browser()
    await browser.submit_password("grace", PASSWORD)
    assert (await at(other, browser).get("/v1/jobs")).status == 200
    kept = dict(browser.cookies)
    form = {"csrf": browser.cookies[CSRF_COOKIE]}
    assert (await at(other, browser).post("/auth/logout", form)).status == 303
    for house in two:
        assert (await Browser(house.base, house.client, dict(kept)).get("/v1/jobs")).status == 401


async def test_a_revoked_token_is_refused_by_both_auth_services_at_once(two: tuple[House, House]) -> None:
    store = TokenStore(two[0].home)
    record, token = store.create("ada", "submitter", dt.timedelta(hours=1))
    assert [await house.bearer(token) for house in two] == [200, 200]
    made = [(await house.browser().post("/auth/exchange", authorization=f"Bearer {token}")).json for house in two]
    for house in two:
        assert [await house.bearer(each["pass"]) for each in made] == [200, 200], "either knows the key of both"
    store.revoke(record.id)
    assert [await house.bearer(token) for house in two] == [401, 401]
    for house in two:
        assert [await house.bearer(each["pass"]) for each in made] == [401, 401]


async def test_a_sign_in_begun_at_one_auth_service_is_finished_once_at_the_other(two: tuple[House, House]) -> None:
    one, other = two
    browser = one.browser()
    away = await browser.get("/auth/login?with=provider&return_to=/v1/jobs")
    back = (await browser.outside(away.location)).location.removeprefix(ORIGIN)
    cookies = dict(browser.cookies)
    reply = await at(other, browser).get(back)
    assert (reply.status, reply.location) == (303, "/v1/jobs")
    for house in two:
        again = await Browser(house.base, house.client, dict(cookies)).get(back)
        assert again.status == 400, "the state was used before"


async def test_a_command_waiting_at_one_auth_service_is_signed_in_once_at_the_other(two: tuple[House, House]) -> None:
    one, other = two
    begun = (await one.browser().post("/auth/device", x_forwarded_for="192.0.2.9")).json
    browser = other.browser()
    await browser.submit_password("grace", PASSWORD)
    form = {"user_code": begun["user_code"], "csrf": browser.cookies[CSRF_COOKIE], "decision": "approve"}
    assert (await browser.post("/auth/device/decide", form)).status == 200
    assert (await at(one, browser).post("/auth/device/decide", form)).status == 404, "it is decided"
    asked = {"grant_type": GRANT_TYPE, "device_code": begun["device_code"]}
    answers = await asyncio.gather(*(house.browser().post("/auth/device/token", asked) for house in two * 2))
    signed_in = [each.json for each in answers if each.status == 200]
    assert [each["name"] for each in signed_in] == ["grace"]
    assert await one.bearer(signed_in[0]["access_token"]) == 200


async def test_failed_sign_ins_at_both_auth_services_are_counted_together(two: tuple[House, House]) -> None:
    for house in two:
        house.service.checks.sign_in.clock = lambda: NOW
    statuses = [
        (await two[number % 2].browser().submit_password("grace", "wrong")).status
        for number in range(FREE_FAILURES + 1)
    ]
    assert statuses == [403] * FREE_FAILURES + [429]


async def test_only_sign_ins_are_refused_while_the_shared_store_is_damaged(two: tuple[House, House]) -> None:
    one, other = two
    _, token = TokenStore(one.home).create("ada", "submitter", dt.timedelta(hours=1))
    browser = one.browser()
    await browser.submit_password("grace", PASSWORD)
    path = shared_store_file(one.home)
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    path.touch(mode=0o600)
    path.write_bytes(b"not a database" * 100)
    for house in two:
        refused = await house.browser().submit_password("grace", PASSWORD)
        assert refused.status == 503
        assert "try again" in refused.text
        assert (await house.browser().post("/auth/device")).status == 503
        assert (await house.browser().get("/auth/login?with=provider")).status == 503
        # What needs none of it goes on.
        assert await house.bearer(token) == 200
        assert (await at(house, browser).get("/v1/jobs")).status == 200
    path.unlink()
    assert (await other.browser().submit_password("grace", PASSWORD)).status == 303


async def test_both_auth_services_write_one_audit_log_that_verifies(two: tuple[House, House]) -> None:
    _, token = TokenStore(two[0].home).create("ada", "submitter", dt.timedelta(hours=1))
    before = len(two[0].audited())
    await asyncio.gather(*(house.bearer(token) for house in two * 5))
    records = two[0].audited()
    assert len(records) == before + 10
    assert [each["sequence"] for each in records] == sorted({each["sequence"] for each in records})
