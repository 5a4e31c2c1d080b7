"""Sign-in with an OpenID provider: the one valid flow, and the many invalid ones."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from aiohttp import web

from sluice.gateway.credentials.access_tokens import ACCESS_TOKEN_COOKIE, CSRF_COOKIE, SESSION_COOKIE
from sluice.gateway.signin.cookies import LOGIN_COOKIE
from sluice.pki.assertions.principal import SessionId
from tests.identity_provider import Signer

from .conftest import ORIGIN, Browser, House, hidden


async def test_signing_in_leads_back_to_the_page_with_a_session(house: House) -> None:
    browser = house.browser()
    back = await browser.sign_in("/v1/jobs")
    assert (back.status, back.location) == (303, "/v1/jobs")
    assert browser.cookies.keys() == {SESSION_COOKIE, CSRF_COOKIE, ACCESS_TOKEN_COOKIE}
    lines = back.headers.getall("set-cookie")
    assert all("; Path=/; Secure; SameSite=Lax" in line for line in lines)
    assert [line.startswith(CSRF_COOKIE) for line in lines if "HttpOnly" not in line] == [True]
    assert (await browser.get("/v1/jobs")).status == 200
    me = (await browser.get("/auth/whoami")).json
    assert (me["name"], me["roles"], me["groups"], me["method"]) == ("ada", ["submitter"], ["staff"], "session")
    record = house.audited()[1]
    assert (record["operation"], record["principal"], record["credential"]) == ("auth.login", "ada", me["credential"])


async def test_the_authorization_request_to_the_provider_has_pkce_state_and_nonce(house: House) -> None:
    away = await house.browser().get("/auth/login?with=provider")
    url = urlsplit(away.location)
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert f"https://{url.netloc}" == house.provider.issuer
    assert query["redirect_uri"] == f"{ORIGIN}/auth/callback"
    assert (query["response_type"], query["code_challenge_method"], query["client_id"]) == ("code", "S256", "sluice")
    assert len(query["state"]) == len(query["nonce"]) == len(query["code_challenge"]) == 43


async def test_sessions_and_cookie_access_tokens_are_refused_after_a_logout(house: House) -> None:
    browser = house.browser()
    await browser.sign_in()
    await browser.get("/v1/jobs")
    before = dict(browser.cookies)
    account = await browser.get("/auth/account")
    reply = await browser.post("/auth/logout", {"csrf": hidden(account.text, "csrf")})
    assert reply.status == 303
    assert urlsplit(reply.location).path == "/logout"
    assert browser.cookies == {}
    after = await browser.outside(reply.location)
    assert after.location == f"{ORIGIN}/auth/signed-out"
    assert house.provider.signed_out == ["ada"]
    assert (await browser.get("/auth/signed-out")).status == 200
    old = Browser(house.base, house.client, before)
    assert (await old.get("/v1/jobs")).status == 401
    only_access_token = Browser(house.base, house.client, {ACCESS_TOKEN_COOKIE: before[ACCESS_TOKEN_COOKIE]})
    assert (await only_access_token.get("/v1/jobs")).status == 401


async def test_logout_needs_the_csrf_token(house: House) -> None:
    browser = house.browser()
    await browser.sign_in()
    assert (await browser.post("/auth/logout")).status == 403
    assert (await browser.post("/auth/logout", {"csrf": "x"})).status == 403
    assert (await browser.post("/auth/logout", sec_fetch_site="cross-site")).status == 403
    assert (await browser.get("/v1/jobs")).status == 200
    assert (await browser.post("/auth/logout", x_sluice_csrf=browser.cookies[CSRF_COOKIE])).status == 303


@pytest.mark.parametrize("cookie", [ACCESS_TOKEN_COOKIE, SESSION_COOKIE])
async def test_unsafe_requests_with_a_cookie_need_the_csrf_token(house: House, cookie: str) -> None:
    browser = house.browser()
    await browser.sign_in()
    token = browser.cookies[CSRF_COOKIE]
    only = {"cookie": f"{cookie}={browser.cookies[cookie]}"}
    assert (await house.check("POST", **only)).status == 403
    assert (await house.check("POST", x_sluice_csrf=token[:-1] + "x", **only)).status == 403
    assert (await house.check("POST", x_sluice_csrf=token, **only)).status == 200


async def test_the_session_gives_a_new_access_token_when_the_last_one_is_missing(house: House) -> None:
    browser = house.browser()
    await browser.sign_in()
    first = browser.cookies.pop(ACCESS_TOKEN_COOKIE)
    assert (await browser.get("/v1/jobs")).status == 200
    assert browser.cookies[ACCESS_TOKEN_COOKIE] != first
    # A page may also ask for it ahead of time; no script ever sees it.
    reply = await browser.post("/auth/exchange", x_sluice_csrf=browser.cookies[CSRF_COOKIE])
    assert reply.json.keys() == {"expires_in"}


async def test_an_access_token_cookie_without_its_csrf_token_can_change_nothing(house: House) -> None:
    browser = house.browser()
    await browser.sign_in()
    await browser.get("/v1/jobs")
    stolen = browser.cookies[ACCESS_TOKEN_COOKIE]
    assert (await house.check("POST", cookie=f"{ACCESS_TOKEN_COOKIE}={stolen}")).status == 403


async def test_browsers_are_redirected_to_sign_in_and_programs_get_401(house: House) -> None:
    page = await house.check(target="/v1/jobs?state=RUNNING", accept="text/html,*/*", sec_fetch_mode="navigate")
    assert page.status == 302
    assert page.location == "/auth/login?return_to=%2Fv1%2Fjobs%3Fstate%3DRUNNING"
    assert (await house.check(accept="text/html,*/*", sec_fetch_mode="cors")).status == 401
    assert (await house.check("POST", accept="text/html", sec_fetch_mode="navigate")).status == 401


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/%5cevil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/..//evil.example",
        "/a%0d%0aset-cookie:x=y",
        "",
    ],
)
async def test_the_return_address_after_sign_in_never_leads_to_another_site(house: House, target: str) -> None:
    browser = house.browser()
    assert (await browser.sign_in(quote(target, safe=""))).location == "/"


async def test_a_login_state_is_valid_once_and_only_in_its_own_browser(house: House) -> None:
    browser, other = house.browser(), house.browser()
    away = await browser.get("/auth/login?with=provider")
    back = (await browser.outside(away.location)).location.removeprefix(ORIGIN)
    # Login CSRF: the attacker's code and state, brought to somebody else's browser.
    await other.get("/auth/login?with=provider")
    assert (await other.get(back)).status == 400
    # And now it is used up for its owner as well.
    assert (await browser.get(back)).status == 400
    assert SESSION_COOKIE not in browser.cookies | other.cookies


async def test_an_authorization_code_is_valid_once(house: House) -> None:
    browser = house.browser()
    away = await browser.get("/auth/login?with=provider")
    back = (await browser.outside(away.location)).location.removeprefix(ORIGIN)
    login = browser.cookies[LOGIN_COOKIE]
    assert (await browser.get(back)).status == 303
    browser.cookies[LOGIN_COOKIE] = login
    assert (await browser.get(back)).status == 400
    # The same code under a new state: the provider refuses it, and so do we.
    code = parse_qs(urlsplit(back).query)["code"][0]
    again = await browser.get("/auth/login?with=provider")
    state = parse_qs(urlsplit(again.location).query)["state"][0]
    replayed = await browser.get(f"/auth/callback?code={code}&state={state}&iss={house.provider.issuer}")
    assert replayed.status == 503
    assert "session" not in replayed.text


async def test_a_planted_session_is_replaced_and_ended_by_signing_in(house: House) -> None:
    """Session fixation: a session that was in the browser before signing in is worthless afterwards."""
    first = house.browser()
    await first.sign_in()
    planted = first.cookies[SESSION_COOKIE]
    victim = house.browser()
    victim.cookies[SESSION_COOKIE] = planted
    house.provider.user = "eve"
    await victim.sign_in()
    assert victim.cookies[SESSION_COOKIE] != planted
    assert (await first.get("/v1/jobs")).status == 401
    assert (await victim.get("/auth/whoami")).json["name"] == "eve"


def _unsigned(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return f"{encoded[0]}.{encoded[1]}."


@pytest.mark.parametrize(
    "twist",
    [
        pytest.param({"nonce": "another"}, id="nonce of another sign-in"),
        pytest.param({"nonce": None}, id="no nonce"),
        pytest.param({"iss": "https://evil.example"}, id="issuer"),
        pytest.param({"aud": "another-client"}, id="audience"),
        pytest.param({"aud": ["sluice", "another"]}, id="two audiences and no azp"),
        pytest.param({"exp": 1}, id="expired"),
        pytest.param({"sub": "a b"}, id="a name with a blank"),
        pytest.param({"sub": ""}, id="no name"),
    ],
)
async def test_an_id_token_with_invalid_claims_is_refused(house: House, twist: dict[str, Any]) -> None:
    house.provider.twist = lambda claims: {**claims, **twist}
    browser = house.browser()
    assert (await browser.sign_in()).status == 403
    assert SESSION_COOKIE not in browser.cookies


async def test_an_id_token_with_an_invalid_signature_is_refused(house: House) -> None:
    for sign in (Signer().sign, Signer(kid=house.provider.signer.kid).sign, _unsigned):
        house.provider.sign = sign
        browser = house.browser()
        assert (await browser.sign_in()).status == 403
        assert SESSION_COOKIE not in browser.cookies


async def test_a_callback_without_the_issuer_of_the_provider_is_refused(house: House) -> None:
    for change in ("&iss=https://evil.example", ""):
        browser = house.browser()
        away = await browser.get("/auth/login?with=provider")
        back = (await browser.outside(away.location)).location.removeprefix(ORIGIN)
        assert (await browser.get(back.partition("&iss=")[0] + change)).status == 403
    assert "/token" not in house.provider.asked


async def test_an_unavailable_provider_is_reported(house: House) -> None:
    async def broken(_: web.BaseRequest) -> web.Response:
        return web.Response(status=500)

    house.provider.answers["/.well-known/openid-configuration"] = broken
    reply = await house.browser().get("/auth/login?with=provider")
    assert reply.status == 503
    assert reply.json["detail"] == "The identity provider is not available."


async def test_a_discovery_document_of_another_issuer_is_refused(house: House) -> None:
    async def lying(_: web.BaseRequest) -> web.Response:
        issuer = house.provider.issuer
        urls = dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), f"{issuer}/x")
        return web.json_response({"issuer": f"{issuer}/other", **urls})

    house.provider.answers["/.well-known/openid-configuration"] = lying
    assert (await house.browser().get("/auth/login?with=provider")).status == 503


async def test_revoking_the_user_or_the_session_signs_the_browser_out(house: House) -> None:
    browser = house.browser()
    await browser.sign_in()
    await browser.get("/v1/jobs")
    revocations = house.service.checks.authenticator.revocations
    me = (await browser.get("/auth/whoami")).json
    revocations.revoke(("user", "ada"))
    assert (await browser.get("/v1/jobs")).status == 401
    assert (await house.browser().sign_in()).status == 403
    revocations.restore(("user", "ada"))
    assert (await browser.get("/v1/jobs")).status == 200
    revocations.revoke(("session", SessionId(me["credential"])))
    assert (await browser.get("/v1/jobs")).status == 401
