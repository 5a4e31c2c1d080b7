"""Auth services on two machines that share a database.

Each continues what the other has begun, exactly once, or refuses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from sluice.core import Home, write_secret
from sluice.gateway.config import GatewayConfig, OidcConfig, SharedStoreConfig
from sluice.gateway.credentials import TokenStore, UserStore, revoke_sessions
from sluice.gateway.credentials.access_tokens import CSRF_COOKIE
from sluice.gateway.service.assembly import auth_service, route_file
from sluice.gateway.signin.device import GRANT_TYPE
from sluice.gateway.signin.throttle import FREE_FAILURES
from tests.identity_provider import CLIENT_ID, identity_provider, provider_tls
from tests.integration.gateway.signin.conftest import ORIGIN, POLICY, ROUTES, TRUST_DOMAIN, Browser, House
from tests.postgres.server import Server

NOW = 1_900_000_000.0
PASSWORD = "correct horse battery"  # noqa: S105  of the test's own user
SECOND = 1.0


@pytest.fixture
async def two(config: SharedStoreConfig, tmp_path: Path) -> AsyncIterator[tuple[House, House]]:
    """An auth service on each of two machines; both accept the provider and a local user."""
    tls = tmp_path / "provider"
    tls.mkdir()
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(identity_provider(provider_tls(tls)))
        houses = []
        for name in ("one", "other"):
            home = Home.at(tmp_path / name).create()
            write_secret(route_file(home), json.dumps(ROUTES).encode())
            write_secret(home.gateway / "policy.toml", POLICY.encode())
            oidc = OidcConfig(issuer=provider.issuer, client_id=CLIENT_ID, ca_file=str(provider.ca_file))
            settings = GatewayConfig(public_url=ORIGIN, oidc=oidc, shared_store=config)
            service = await stack.enter_async_context(auth_service(home, settings, TRUST_DOMAIN))
            runner = web.ServerRunner(web.Server(service.handle), handle_signals=False, shutdown_timeout=1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            client = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
            houses.append(
                House(home, settings, service, f"http://127.0.0.1:{runner.addresses[0][1]}", client, provider)
            )
        await asyncio.to_thread(UserStore(houses[0].home).add, "grace", PASSWORD, roles=("submitter",), groups=())
        await asyncio.sleep(SECOND)
        yield houses[0], houses[1]


def at(house: House, browser: Browser) -> Browser:
    """Return the same browser, pointed at another auth service."""
    return Browser(house.base, browser.session, browser.cookies)


async def test_a_session_is_valid_at_both_auth_services_and_ends_at_both(two: tuple[House, House]) -> None:
    one, other = two
    browser = other.browser()
    assert (await browser.submit_password("grace", PASSWORD)).status == 303
    assert (await at(one, browser).get("/v1/jobs")).status == 200, "at once"
    kept = dict(browser.cookies)
    form = {"csrf": browser.cookies[CSRF_COOKIE]}
    assert (await at(one, browser).post("/auth/logout", form)).status == 303
    await asyncio.sleep(SECOND)
    for house in two:
        assert (await Browser(house.base, house.client, dict(kept)).get("/v1/jobs")).status == 401


async def test_a_token_revoked_at_one_auth_service_is_refused_by_the_other_within_a_second(
    two: tuple[House, House],
) -> None:
    one, other = two
    record, token = await asyncio.to_thread(TokenStore(one.home).create, "ada", "submitter", dt.timedelta(hours=1))
    assert [await house.bearer(token) for house in two] == [200, 200], "at once"
    made = [(await house.browser().post("/auth/exchange", authorization=f"Bearer {token}")).json for house in two]
    for house in two:
        assert [await house.bearer(each["pass"]) for each in made] == [200, 200], "either has the key of both"
    browser = other.browser()
    await browser.submit_password("grace", PASSWORD)
    await asyncio.to_thread(TokenStore(one.home).revoke, record.id)
    await asyncio.sleep(SECOND)
    for house in two:
        assert await house.bearer(token) == 401
        assert [await house.bearer(each["pass"]) for each in made] == [401, 401]
    ended = await asyncio.to_thread(revoke_sessions, one.home, lambda each: each.name == "grace")
    assert len(ended) == 1, "the session of the other machine"
    await asyncio.sleep(SECOND)
    assert (await browser.get("/v1/jobs")).status == 401


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


async def test_a_device_sign_in_begun_at_one_auth_service_is_approved_once_at_the_other(
    two: tuple[House, House],
) -> None:
    one, other = two
    begun = (await one.browser().post("/auth/device", x_forwarded_for="192.0.2.9")).json
    browser = other.browser()
    await browser.submit_password("grace", PASSWORD)
    form = {"user_code": begun["user_code"], "csrf": browser.cookies[CSRF_COOKIE], "decision": "approve"}
    assert (await browser.post("/auth/device/decide", form)).status == 200
    asked = {"grant_type": GRANT_TYPE, "device_code": begun["device_code"]}
    answers = await asyncio.gather(*(house.browser().post("/auth/device/token", asked) for house in two * 2))
    assert [each.json["name"] for each in answers if each.status == 200] == ["grace"]


async def test_password_guesses_at_all_auth_services_are_counted_together(two: tuple[House, House]) -> None:
    for house in two:
        house.service.checks.sign_in.clock = lambda: NOW
    statuses = [
        (await two[number % 2].browser().submit_password("grace", "wrong")).status
        for number in range(FREE_FAILURES + 1)
    ]
    assert statuses == [403] * FREE_FAILURES + [429]


async def test_nobody_is_admitted_without_the_database_and_everybody_when_it_is_back(
    two: tuple[House, House], server: Server
) -> None:
    one, other = two
    _, token = await asyncio.to_thread(TokenStore(one.home).create, "ada", "submitter", dt.timedelta(hours=1))
    browser = one.browser()
    await browser.submit_password("grace", PASSWORD)
    await asyncio.sleep(SECOND)
    await asyncio.to_thread(server.stop)
    try:
        await asyncio.sleep(one.config.shared_store.stale_after + SECOND if one.config.shared_store else 0)
        for house in two:
            # Envoy makes a 503 of it, after it has asked another one.
            assert await house.bearer(token) == 500
            assert (await at(house, browser).get("/v1/jobs")).status == 500
            assert (await house.browser().submit_password("grace", PASSWORD)).status == 503
    finally:
        await asyncio.to_thread(server.start)
    deadline = time.monotonic() + 30
    while [await house.bearer(token) for house in two] != [200, 200]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert (await at(other, browser).get("/v1/jobs")).status == 200
    assert (await other.browser().submit_password("grace", PASSWORD)).status == 303


async def test_each_machine_has_its_own_audit_log(two: tuple[House, House]) -> None:
    _, token = await asyncio.to_thread(TokenStore(two[0].home).create, "ada", "submitter", dt.timedelta(hours=1))
    await asyncio.sleep(SECOND)
    for house in two:
        before = len(house.audited())
        assert await house.bearer(token) == 200
        assert len(house.audited()) == before + 1
