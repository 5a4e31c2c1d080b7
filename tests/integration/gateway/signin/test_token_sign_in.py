"""A browser signs in with an API token, and has the token's permissions as long as the token is valid."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from sluice.core.errors import SluiceError
from sluice.core.pages.assets import CACHE_FOR_EVER, asset_path, assets
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.credentials.access_tokens import ACCESS_TOKEN_COOKIE, CSRF_COOKIE, SESSION_COOKIE
from sluice.gateway.credentials.session_store import read_sessions
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.signin.device import GRANT_TYPE

from .conftest import Browser, House, Reply, Start, hidden

HOUR = dt.timedelta(hours=1)


@pytest.fixture
async def local(start: Start) -> House:
    return await start(oidc=None)


async def submit(browser: Browser, token: str, return_to: str = "/ui") -> Reply:
    form = await browser.get(f"/auth/login?with=token&return_to={return_to}")
    return await browser.post(
        "/auth/login", {"token": hidden(form.text, "token"), "return_to": return_to, "api_token": token}
    )


async def test_signing_in_with_a_token_begins_a_session_with_its_role_and_scopes(local: House) -> None:
    record, token = TokenStore(local.home).create("ada", "submitter", HOUR, scopes=("jobs.*",))
    browser = local.browser()
    reply = await submit(browser, f"  {token}\n", "/ui/jobs")
    assert (reply.status, reply.location) == (303, "/ui/jobs")
    assert browser.cookies.keys() >= {SESSION_COOKIE, ACCESS_TOKEN_COOKIE, CSRF_COOKIE}
    me = (await browser.get("/auth/whoami")).json
    assert (me["name"], me["roles"], me["scopes"], me["method"]) == ("ada", ["submitter"], ["jobs.*"], "token")
    assert me["operations"]["jobs.list"] == "allow"
    assert "overview.read" not in me["operations"], "beyond the token's scopes"
    assert (await browser.get("/v1/jobs")).status == 200
    # Without the CSRF token nothing is changed, as with every cookie.
    assert (await browser.post("/v1/jobs")).status == 403
    assert (await browser.post("/v1/jobs", x_sluice_csrf=browser.cookies[CSRF_COOKIE])).status == 200
    (session,) = read_sessions(local.home).records
    assert (session.token, session.expires_at) == (record.id, record.expires_at)
    assert token not in audit_file(local.home).read_text()
    assert f"signed in with token {record.id}" in audit_file(local.home).read_text()


@pytest.mark.parametrize("shown", ["", "slc_", "slc_" + "0" * 12 + "_" + "0" * 64, "x" * 15000])
async def test_an_invalid_token_does_not_sign_in(local: House, shown: str) -> None:
    browser = local.browser()
    reply = await submit(browser, shown)
    assert reply.status == 403
    assert "The token is not valid." in reply.text
    assert SESSION_COOKIE not in browser.cookies


async def test_a_token_form_without_its_form_token_does_not_sign_in(local: House) -> None:
    _, token = TokenStore(local.home).create("ada", "admin", HOUR)
    browser = local.browser()
    assert (await browser.post("/auth/login", {"api_token": token})).status == 403
    assert SESSION_COOKIE not in browser.cookies


async def test_revoking_the_token_ends_the_session_and_its_access_tokens(local: House) -> None:
    record, token = TokenStore(local.home).create("ada", "viewer", HOUR)
    browser, other = local.browser(), local.browser()
    _, others = TokenStore(local.home).create("ada", "viewer", HOUR)
    await submit(browser, token)
    await submit(other, others)
    assert (await browser.get("/v1/jobs")).status == 200
    TokenStore(local.home).revoke(record.id)
    for cookies in ({SESSION_COOKIE, ACCESS_TOKEN_COOKIE, CSRF_COOKIE}, {SESSION_COOKIE}, {ACCESS_TOKEN_COOKIE}):
        stolen = local.browser()
        stolen.cookies.update({name: value for name, value in browser.cookies.items() if name in cookies})
        assert (await stolen.get("/v1/jobs")).status == 401
        assert (await stolen.get("/auth/whoami")).status == 401
    assert (await other.get("/v1/jobs")).status == 200
    assert (await submit(local.browser(), token)).status == 403


async def test_a_revoked_token_ends_its_sessions_even_if_revoking_the_sessions_fails(
    local: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revoking the sessions is for access tokens that others check; here the token itself is checked."""
    record, token = TokenStore(local.home).create("ada", "viewer", HOUR)
    browser = local.browser()
    await submit(browser, token)

    def fails(*_: object) -> None:
        raise SluiceError("the session file cannot be read")

    monkeypatch.setattr("sluice.gateway.credentials.token_file.revoke_sessions", fails)
    with pytest.raises(SluiceError):
        TokenStore(local.home).revoke(record.id)
    browser.cookies.pop(ACCESS_TOKEN_COOKIE)
    assert (await browser.get("/v1/jobs")).status == 401


async def test_the_session_ends_with_the_token(local: House) -> None:
    now = time.time()
    _, token = TokenStore(local.home).create("ada", "viewer", dt.timedelta(minutes=2))
    browser = local.browser()
    await submit(browser, token)
    local.service.checks.authenticator.clock = lambda: now + 130
    browser.cookies.pop(ACCESS_TOKEN_COOKIE)
    assert (await browser.get("/v1/jobs")).status == 401


async def test_a_session_begun_with_a_token_can_sign_out_but_cannot_sign_a_command_in(local: House) -> None:
    _, token = TokenStore(local.home).create("ada", "admin", HOUR, scopes=("jobs.read",))
    browser = local.browser()
    await submit(browser, token)
    begun = (await local.browser().post("/auth/device")).json
    form = {"user_code": begun["user_code"], "csrf": browser.cookies[CSRF_COOKIE], "decision": "approve"}
    assert (await browser.post("/auth/device/decide", form)).status == 403, "its scopes would be lost"
    poll = {"grant_type": GRANT_TYPE, "device_code": begun["device_code"]}
    assert (await local.browser().post("/auth/device/token", poll)).json == {"error": "authorization_pending"}
    reply = await browser.post("/auth/logout", {"csrf": browser.cookies[CSRF_COOKIE]})
    assert (reply.status, reply.location) == (303, "/auth/signed-out")
    assert (await browser.get("/v1/jobs")).status == 401


async def test_static_assets_are_public_and_cached_forever(local: House) -> None:
    before = len(local.audited())
    for asset in assets().values():
        reply = await local.browser().get(asset.path)
        assert (reply.status, reply.headers["cache-control"]) == (200, CACHE_FOR_EVER)
        assert reply.headers["content-type"] == asset.content_type
    squeezed = await local.browser().get(asset_path("sluice.css"), accept_encoding="gzip")
    assert squeezed.headers["content-encoding"] == "gzip"
    for path in (
        "/auth/static/",
        "/auth/static/sluice.css",
        asset_path("sluice.css") + "x",
    ):
        assert (await local.browser().get(path)).status in {400, 404}
    assert len(local.audited()) == before, "nobody looks for a style sheet in the audit log"
