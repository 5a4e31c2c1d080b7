"""A person signs in with a real browser at a real provider, through the real Envoy, and out again."""

from __future__ import annotations

import time

from aiohttp import web

from sluice.gateway.credentials.access_tokens import ACCESS_TOKEN_COOKIE, CSRF_COOKIE, SESSION_COOKIE
from sluice.gateway.credentials.session_store import revoke_sessions

from .chromium import DEADLINE_SECONDS
from .conftest import Scene


async def sign_in(scene: Scene, target: str, user: str = "ada", start: str = "") -> None:
    """Open a page of the gateway, sign in at the provider, and end up at ``target``."""
    tab = scene.tab
    await tab.go(scene.url + (start or target))
    await tab.until(
        f"location.origin === '{scene.provider.issuer}' && document.querySelector('#user')", "the provider asks"
    )
    await tab.type_into("#user", user)
    await tab.click("#go")
    await tab.until(f"location.href === '{scene.url}{target}'", "the page one wanted to see")


async def fetched(scene: Scene, method: str, path: str, *, csrf: bool = False) -> int:
    """Return the status of a request that a script on a page of the gateway sends.

    The policy of our pages forbids scripts to send anything, so it is bypassed for this request.
    """
    tab = scene.tab
    await tab.call("Page.setBypassCSP", enabled=True)
    await tab.go(scene.url + "/auth/signed-out")
    header = "{'x-sluice-csrf': (document.cookie.match(/__Host-sluice-csrf=([^;]*)/) || [])[1]}" if csrf else "{}"
    body = ", body: ''" if method == "POST" else ""
    script = f"fetch('{path}', {{method: '{method}', headers: {header}{body}}}).then(reply => reply.status)"
    status: int = await tab.evaluate(script)
    await tab.call("Page.setBypassCSP", enabled=False)
    return status


async def test_cookies_of_a_sign_in_work_until_sign_out_and_are_refused_afterwards(scene: Scene) -> None:
    tab, gateway = scene.tab, scene.gateway
    # 1. A page one may not see leads to the provider and back to the page, now with its content.
    await sign_in(scene, "/v1/jobs")
    assert "served" in await tab.text()
    cookies = await tab.cookies(scene.url)
    assert cookies.keys() == {SESSION_COOKIE, ACCESS_TOKEN_COOKIE, CSRF_COOKIE}
    assert all(cookie["secure"] and cookie["sameSite"] == "Lax" for cookie in cookies.values())
    assert {name for name, cookie in cookies.items() if not cookie["httpOnly"]} == {CSRF_COOKIE}
    assert await tab.cookies(scene.provider.issuer) == {}
    # 2. The access token is enough; what changes something needs the CSRF token, too.
    gateway.reached()
    assert await fetched(scene, "GET", "/v1/jobs") == 200
    assert await fetched(scene, "POST", "/v1/jobs") == 403
    assert len(gateway.reached()) == 1
    assert await fetched(scene, "POST", "/v1/jobs", csrf=True) == 200
    (submitted,) = gateway.reached()
    assert submitted.values("cookie") == submitted.values("authorization") == []
    # 3. Signing out: here, at the provider, and back.
    await tab.go(scene.url + "/auth/account")
    assert "signed in as ada (submitter)" in await tab.text()
    await tab.click("#sign-out")
    await tab.until(f"location.href === '{scene.url}/auth/signed-out'", "signed out")
    assert scene.provider.signed_out == ["ada"]
    assert await tab.cookies(scene.url) == {}
    # 4. Whoever has kept the cookies has nothing: neither the session nor the access token that had minutes to go.
    gateway.reached()
    await tab.put_cookies(cookies.values(), scene.url)
    assert (await tab.cookies(scene.url)).keys() == cookies.keys()
    await tab.go(scene.url + "/auth/whoami")
    assert "Status 401" in await tab.text()
    assert await fetched(scene, "GET", "/v1/jobs") in {401, 403}
    assert await fetched(scene, "POST", "/v1/jobs", csrf=True) in {401, 403}
    assert gateway.reached() == []
    # 5. And whoever signs in anew is not held up by what is left of before.
    await sign_in(scene, "/v1/jobs?state=RUNNING", "eve", "/auth/login?return_to=/v1/jobs?state=RUNNING")
    assert "served" in await tab.text()
    assert await fetched(scene, "GET", "/v1/jobs") == 200


async def test_another_site_cannot_use_the_session(scene: Scene) -> None:
    await sign_in(scene, "/v1/jobs")
    tab, gateway = scene.tab, scene.gateway
    gateway.reached()

    async def attack(request: web.BaseRequest) -> web.Response:
        target = request.query["target"]
        form = f'<form method="post" action="{scene.url}{target}"></form><script>document.forms[0].submit()</script>'
        return web.Response(text=f"<!doctype html>{form}", content_type="text/html")

    scene.provider.answers["/attack"] = attack
    for target in ("/v1/jobs", "/auth/logout", "/auth/device/decide"):
        await tab.go(f"{scene.provider.issuer}/attack?target={target}")
        await tab.until(f"location.href === '{scene.url}{target}'", "the form was sent")
        assert "Status 40" in await tab.text()
    assert gateway.reached() == []
    await tab.go(scene.url + "/v1/jobs")
    assert await fetched(scene, "GET", "/v1/jobs") == 200


async def test_requests_of_an_open_page_are_refused_after_its_session_was_revoked(scene: Scene) -> None:
    await sign_in(scene, "/v1/jobs")
    assert await fetched(scene, "GET", "/v1/jobs") == 200
    assert len(revoke_sessions(scene.gateway.home, lambda record: record.name == "ada")) == 1
    deadline = time.monotonic() + DEADLINE_SECONDS
    while await fetched(scene, "GET", "/v1/jobs") == 200:
        assert time.monotonic() < deadline, "the session has ended"
    assert await fetched(scene, "GET", "/v1/jobs") in {401, 403}
