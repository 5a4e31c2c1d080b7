"""Local users, and commands that sign in with the help of a browser."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.credentials.access_tokens import ACCESS_TOKEN_COOKIE, CSRF_COOKIE, SESSION_COOKIE
from sluice.gateway.credentials.session_store import SessionStore, revoke_sessions
from sluice.gateway.credentials.sessions import MAX_SESSIONS_PER_NAME, SessionLimits
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.credentials.users import UserStore
from sluice.gateway.principal import Subject
from sluice.gateway.signin.cookies import LOGIN_COOKIE
from sluice.gateway.signin.device import GRANT_TYPE
from sluice.gateway.signin.device_codes import MAX_OPEN_PER_ADDRESS
from sluice.gateway.signin.throttle import FREE_FAILURES

from .conftest import Browser, House, Start, hidden

PASSWORD = "correct horse battery"  # noqa: S105  of the test's own user


@pytest.fixture
async def local(start: Start) -> House:
    """An auth service without a provider, which is the embedded default, with one local user."""
    house = await start(oidc=None)
    UserStore(house.home).add("grace", PASSWORD, roles=("submitter",), groups=())
    return house


async def test_a_user_signs_in_with_a_password(local: House) -> None:
    browser = local.browser()
    reply = await browser.submit_password("grace", PASSWORD, "/v1/jobs")
    assert (reply.status, reply.location) == (303, "/v1/jobs")
    me = (await browser.get("/auth/whoami")).json
    assert (me["name"], me["roles"], me["method"]) == ("grace", ["submitter"], "user")
    assert (await browser.post("/v1/jobs", x_sluice_csrf=browser.cookies[CSRF_COOKIE])).status == 200


async def test_a_refused_browser_is_shown_the_reason_or_redirected_to_the_sign_in_page(local: House) -> None:
    """A redirect loop is avoided: a signed-in user without permission sees that reason."""
    browser = local.browser()
    await browser.submit_password("grace", PASSWORD, "/v1/jobs")
    reply = await browser.get("/auth/denied?return_to=/v1/jobs")
    assert (reply.status, "Not allowed" in reply.text) == (403, True)
    revoke_sessions(local.home, lambda record: record.name == "grace")
    for target, back in (("/v1/jobs", "%2Fv1%2Fjobs"), ("https://elsewhere.example/", "%2F")):
        reply = await browser.get(f"/auth/denied?return_to={target}")
        assert (reply.status, reply.location) == (303, f"/auth/login?return_to={back}")
    assert not browser.cookies.get(ACCESS_TOKEN_COOKIE)


@pytest.mark.parametrize(
    ("name", "password"),
    [("grace", "not the right one"), ("grace", ""), ("nobody", PASSWORD), ("", ""), ("grace", PASSWORD + "x" * 5000)],
)
async def test_a_wrong_name_and_a_wrong_password_get_the_same_answer(local: House, name: str, password: str) -> None:
    browser = local.browser()
    reply = await browser.submit_password(name, password)
    assert reply.status == 403
    assert "Name or password is wrong." in reply.text
    assert SESSION_COOKIE not in browser.cookies
    assert password == "" or password not in audit_file(local.home).read_text()


async def test_a_login_form_of_another_browser_or_site_is_refused(local: House) -> None:
    good = {"name": "grace", "password": PASSWORD}
    browser = local.browser()
    assert (await browser.post("/auth/login", good)).status == 403
    form = await browser.get("/auth/login")
    token = hidden(form.text, "token")
    other = local.browser()
    assert (await other.post("/auth/login", {**good, "token": token})).status == 403
    assert (await browser.post("/auth/login", {**good, "token": token}, sec_fetch_site="cross-site")).status == 403
    assert (await browser.post("/auth/login", {**good, "token": token}, origin="https://evil.example")).status == 403
    assert (await browser.post("/auth/login", {**good, "token": token}, origin="null")).status == 403
    assert SESSION_COOKIE not in browser.cookies | other.cookies
    # Without a referrer a browser says "null", and beside it the truth.
    reply = await browser.post("/auth/login", {**good, "token": token}, origin="null", sec_fetch_site="same-origin")
    assert reply.status == 303


async def test_password_guessing_is_rate_limited_for_the_guessing_address_only(local: House) -> None:
    now = time.time()
    local.service.checks.sign_in.clock = lambda: now
    browser = local.browser()
    for _ in range(FREE_FAILURES):
        assert (await browser.submit_password("grace", "wrong password")).status == 403
    assert (await browser.submit_password("grace", PASSWORD)).status == 429
    form = await browser.get("/auth/login")
    good = {"name": "grace", "password": PASSWORD, "token": hidden(form.text, "token")}
    assert (await browser.post("/auth/login", good, x_forwarded_for="192.0.2.7")).status == 303


async def test_a_password_change_or_the_removal_of_a_user_ends_every_session(local: House) -> None:
    browser = local.browser()
    await browser.submit_password("grace", PASSWORD)
    assert (await browser.get("/v1/jobs")).status == 200
    UserStore(local.home).set_password("grace", "another good password")
    assert (await browser.get("/v1/jobs")).status == 401
    browser.cookies.clear()
    await browser.submit_password("grace", "another good password")
    assert (await browser.get("/v1/jobs")).status == 200
    UserStore(local.home).remove("grace")
    assert (await browser.get("/v1/jobs")).status == 401


async def test_logout_without_a_provider_leads_to_our_own_page(local: House) -> None:
    browser = local.browser()
    await browser.submit_password("grace", PASSWORD)
    reply = await browser.post("/auth/logout", {"csrf": browser.cookies[CSRF_COOKIE]})
    assert reply.location == "/auth/signed-out"
    assert browser.cookies == {}


async def test_the_number_of_sessions_of_one_user_is_limited(local: House) -> None:
    store = local.service.checks.authenticator.sessions
    texts = [store.begin(Subject("grace", "user"), "browser")[1] for _ in range(MAX_SESSIONS_PER_NAME + 1)]
    first, second = (Browser(local.base, local.client, {SESSION_COOKIE: text}) for text in texts[:2])
    assert (await first.get("/v1/jobs")).status == 401
    assert (await second.get("/v1/jobs")).status == 200


async def test_sessions_survive_a_restart_of_the_auth_service(local: House) -> None:
    browser = local.browser()
    await browser.submit_password("grace", PASSWORD)
    again = SessionStore(local.home, SessionLimits(3600, 3600))
    assert again.authenticate(browser.cookies[SESSION_COOKIE]).name == "grace"


async def waiting_command(house: House) -> tuple[str, str]:
    answer = (await house.browser().post("/auth/device", x_forwarded_for="192.0.2.9")).json
    assert answer["verification_uri_complete"] == f"/auth/device?user_code={answer['user_code']}"
    return answer["device_code"], answer["user_code"]


async def asked(house: House, code: str) -> dict[str, object]:
    form = {"grant_type": GRANT_TYPE, "device_code": code}
    document: dict[str, object] = (await house.browser().post("/auth/device/token", form)).json
    return document


async def decided(house: House, user_code: str, decision: str) -> Browser:
    """Sign a user in, and approve or deny a waiting command; returns the browser."""
    browser = house.browser()
    await browser.submit_password("grace", PASSWORD)
    form = {"user_code": user_code, "csrf": browser.cookies[CSRF_COOKIE], "decision": decision}
    assert (await browser.post("/auth/device/decide", form)).status == 200
    return browser


async def test_a_waiting_command_is_signed_in_by_a_user_with_a_browser(local: House) -> None:
    code, user_code = await waiting_command(local)
    now = time.time()
    local.service.checks.sign_in.clock = lambda: now
    assert await asked(local, code) == {"error": "authorization_pending"}
    browser = local.browser()
    led = await browser.get(f"/auth/device?user_code={user_code}")
    assert led.location.startswith("/auth/login?return_to=%2Fauth%2Fdevice%3Fuser_code")
    await browser.submit_password("grace", PASSWORD)
    typed = user_code.lower().replace("-", " ")
    shown = await browser.get(f"/auth/device?user_code={typed.replace(' ', '%20')}")
    assert "192.0.2.9" in shown.text
    form = {"user_code": hidden(shown.text, "user_code"), "csrf": hidden(shown.text, "csrf"), "decision": "approve"}
    assert (await browser.post("/auth/device/decide", form)).status == 200
    # Asking again before its interval is over makes the interval longer (RFC 8628 section 3.5).
    assert await asked(local, code) == {"error": "slow_down"}


async def test_a_command_that_was_approved_before_a_change_of_the_password_is_denied(local: House) -> None:
    code, user_code = await waiting_command(local)
    await decided(local, user_code, "approve")
    UserStore(local.home).set_password("grace", "another long password")
    assert await asked(local, code) == {"error": "access_denied"}


async def test_a_waiting_command_stays_pending_while_a_flooding_address_is_refused(local: House) -> None:
    code, _ = await waiting_command(local)
    flood = [await local.browser().post("/auth/device", x_forwarded_for="192.0.2.66") for _ in range(25)]
    assert [answer.status for answer in flood] == [200] * MAX_OPEN_PER_ADDRESS + [429] * (25 - MAX_OPEN_PER_ADDRESS)
    assert "Wait a little" in flood[-1].text
    assert await asked(local, code) == {"error": "authorization_pending"}
    await waiting_command(local)


async def test_a_command_gets_its_credential_once(local: House) -> None:
    moved = [0.0]
    real = local.service.checks.sign_in.clock
    local.service.checks.sign_in.clock = lambda: real() + moved[0]
    code, user_code = await waiting_command(local)
    await decided(local, user_code, "approve")
    got = await asked(local, code)
    assert got["name"] == "grace"
    moved[0] += 60
    assert await asked(local, code) == {"error": "expired_token"}
    credential = str(got["access_token"])
    assert await local.bearer(credential, "POST") == 200
    # It is a bearer and no cookie; and it can be given back.
    assert (await local.check(cookie=f"{SESSION_COOKIE}={credential}")).status == 401
    assert (await local.browser().post("/auth/logout", authorization=f"Bearer {credential}")).status == 303
    assert await local.bearer(credential) == 401


async def test_only_a_browser_session_with_its_csrf_token_can_sign_in_a_command(local: House) -> None:
    _, user_code = await waiting_command(local)
    form = {"user_code": user_code, "decision": "approve"}
    _, token = TokenStore(local.home).create("ada", "admin", dt.timedelta(hours=1))
    assert (await local.browser().post("/auth/device/decide", form, authorization=f"Bearer {token}")).status == 403
    assert (await local.browser().post("/auth/device/decide", form)).status == 401
    browser = local.browser()
    await browser.submit_password("grace", PASSWORD)
    assert (await browser.post("/auth/device/decide", form)).status == 403


async def test_a_denied_command_gets_access_denied_and_guessing_user_codes_is_rate_limited(local: House) -> None:
    code, user_code = await waiting_command(local)
    browser = await decided(local, user_code, "deny")
    assert await asked(local, code) == {"error": "access_denied"}
    now = time.time()
    local.service.checks.sign_in.clock = lambda: now  # the wait after the failures lasts one second
    statuses = [(await browser.get(f"/auth/device?user_code=BBBB-BBB{letter}")).status for letter in "BCDFGH"]
    assert statuses == [404] * FREE_FAILURES + [429]


async def test_pages_run_no_script_and_show_nothing_unescaped(local: House) -> None:
    page = await local.browser().get("/auth/login?return_to=/v1/jobs?x=%27")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script" not in page.text
    assert "<style" not in page.text
    assert "x='" not in page.text
    assert page.headers["cache-control"] == "no-store"
    assert LOGIN_COOKIE in page.headers["set-cookie"]
