"""Manage tokens and sessions and read the audit log in a real browser."""

from __future__ import annotations

import datetime as dt

from sluice.core.clock import utc_now
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.principal import AccessRole
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.integration.gateway.conftest import TRUST_DOMAIN

from .conftest import Stage, sign_in
from .test_quality import OVERFLOW, WIDTHS, looks, serious


async def test_revoking_a_token_ends_the_open_session_that_was_begun_with_it(small: Stage) -> None:
    tab, home = small.tab, small.gateway.home
    record, token = TokenStore(home).create("grace", AccessRole.VIEWER, dt.timedelta(hours=1))
    # 1. Grace looks at the overview.
    await sign_in(small, token)
    await tab.until("document.querySelector('#part-jobs tr[id]')", "the overview is there")
    cookies = await tab.cookies(small.url)
    # 2. In the same browser an administrator signs in instead, and revokes her token.
    await tab.call("Network.clearBrowserCookies")
    await sign_in(small, small.gateway.token(AccessRole.ADMIN), "/auth/ui/gateway")
    row = f"#token-{record.id}"
    await tab.click(f"{row} summary")
    await tab.click(f"{row} button.danger")
    await tab.until(f"document.querySelector('{row} .badge.bad')?.textContent === 'revoked'", "it is revoked")
    assert TokenStore(home).read().find(record.id).revoked_at is not None
    # 3. Her cookies, put back, open nothing.
    await tab.call("Network.clearBrowserCookies")
    await tab.put_cookies(cookies.values(), small.url)
    await tab.go(small.url + "/auth/ui/gateway")
    await tab.until("location.pathname === '/auth/login'", "she has to sign in")


async def test_an_open_page_shows_that_its_session_has_ended(small: Stage) -> None:
    tab, home = small.tab, small.gateway.home
    record, token = TokenStore(home).create("grace", AccessRole.VIEWER, dt.timedelta(hours=1))
    await sign_in(small, token, "/ui/jobs")
    assert "Your session has ended" not in await tab.text()
    TokenStore(home).revoke(record.id)
    await tab.until("document.querySelector('#notice').textContent.includes('Your session has ended')", "it is told")
    await tab.click("#notice a")
    await tab.until("document.querySelector('#api_token')", "and leads to signing in again")
    await tab.type_into("#api_token", small.gateway.token(AccessRole.VIEWER, "grace"))
    await tab.click("#sign-in-with-token")
    await tab.until(f"location.href === '{small.url}/ui/jobs'", "and back")


async def test_the_audit_log_page_verifies_the_chain(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.ADMIN), "/auth/ui/audit-log")
    await tab.click("#verify")
    await tab.until("document.querySelector('#outcome.ok')?.textContent.includes('verified')", "it holds")


async def test_a_certificate_is_revoked_by_the_authority_that_signed_it(small: Stage) -> None:
    tab, home = small.tab, small.gateway.home
    config = PkiConfig(trust_domain=TRUST_DOMAIN)
    issuer = LocalIssuer(home, config)
    issuer.ensure_authorities()
    for role, name in ((Role.AUTH, "auth-1"), (Role.TASKMANAGER, "tm-1")):
        issuer.issue_to(home.identity(role, name), SpiffeId.process(TRUST_DOMAIN, role, name))
    serial = read_certificates(home.identity(Role.TASKMANAGER, "tm-1") / "chain.pem")[0].serial_number
    row = f"#leaf-{serial:x}"
    async with online_ca(home, config, CaConfig()):
        await sign_in(small, small.gateway.token(AccessRole.ADMIN), "/auth/ui/pki")
        await tab.click(f"{row} summary")
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                await looks(tab, width, scheme)
                assert await tab.evaluate(OVERFLOW) <= 0
            assert await serious(tab) == []
        await tab.evaluate(f"document.querySelector('{row} select').value = 'superseded'")
        await tab.click(f"{row} button.danger")
        await tab.until(f"document.querySelector('{row} .badge.bad')?.textContent === 'revoked'", "it is revoked")
        assert "The certificate is revoked" in await tab.text()
        assert await tab.evaluate(f"document.querySelector('{row} form')") is None
    (entry,) = RevocationStore(home.pki, config, clock=utc_now).revocations(AuthorityKind.INTERNAL)
    assert (entry.number, entry.reason) == (serial, Reason.SUPERSEDED)


async def test_navigation_offers_a_viewer_only_permitted_pages(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.VIEWER))
    visible = (
        "[...document.querySelectorAll('nav a')].filter(each => each.checkVisibility())"
        ".map(each => each.innerText.trim())"
    )
    await tab.until(f"({visible}).length === 5", "the pages that a viewer may see")
    assert await tab.evaluate(visible) == ["Overview", "Jobs", "TaskManagers", "Shuffle", "Trust map"]
    await tab.go(small.url + "/auth/ui/pki")
    assert "may not certificates.list" in await tab.text()
