"""The auth service's own pages: who sees them, what they show, and what their forms do."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256

from sluice.core.clock import utc_now
from sluice.core.files import write_secret
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.credentials.access_tokens import CSRF_COOKIE
from sluice.gateway.credentials.revocations import Revocation
from sluice.gateway.credentials.token_file import TokenStore
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind

from .conftest import Browser, House, Start
from .test_token_sign_in import submit

HOUR = dt.timedelta(hours=1)
PAGES = ("/auth/ui/gateway", "/auth/ui/audit-log", "/auth/ui/pki")
ACTS = (
    "/auth/ui/sessions/revoke",
    "/auth/ui/tokens/revoke",
    "/auth/ui/certificates/revoke",
    "/auth/ui/audit-log/verify",
)
POLICY = b"""
version = 1
[roles.viewer]
allow = ["jobs.list"]
[roles.auditor]
allow = ["audit_log.search"]
[roles.guard]
allow = ["sessions.list"]
[roles.admin]
allow = ["*"]
"""


@pytest.fixture
async def local(start: Start) -> House:
    house = await start(oidc=None)
    write_secret(house.home.gateway / "policy.toml", POLICY)
    return house


def in_force(house: House) -> tuple[Revocation, ...]:
    """The revocations that have not expired."""
    checks = house.service.checks
    return checks.authenticator.revocations.current().unexpired(checks.sign_in.clock())


async def signed_in(house: House, role: str, name: str = "ada") -> Browser:
    _, token = TokenStore(house.home).create(name, role, HOUR, roles=("viewer", "auditor", "guard", "admin"))
    browser = house.browser()
    assert (await submit(browser, token)).status == 303
    return browser


async def test_a_browser_that_is_not_signed_in_is_redirected_to_sign_in_with_a_return_address(local: House) -> None:
    for page in PAGES:
        reply = await local.browser().get(page)
        assert (reply.status, reply.location) == (303, f"/auth/login?return_to={page.replace('/', '%2F')}")
    for act in ACTS:
        assert (await local.browser().post(act, {"id": "x"})).status == 401


async def test_each_admin_page_and_action_is_limited_to_the_roles_in_the_policy(local: House) -> None:
    allowed = {
        "viewer": (403, 403, 403),
        "auditor": (403, 200, 403),
        "guard": (200, 403, 403),
        "admin": (200, 200, 200),
    }
    for role, statuses in allowed.items():
        browser = await signed_in(local, role)
        replies = [await browser.get(page) for page in PAGES]
        assert tuple(reply.status for reply in replies) == statuses, role
        assert all(reply.headers["content-type"].startswith("text/html") for reply in replies)
        csrf = {"csrf": browser.cookies[CSRF_COOKIE]}
        acts = [(await browser.post(act, {"id": "x", **csrf})).status for act in ACTS]
        assert acts == {"admin": [404, 404, 404, 200], "auditor": [403, 403, 403, 200]}.get(role, [403] * 4)
    denied = [each for each in local.audited() if each["operation"] == "tokens.revoke" and each["decision"] == "deny"]
    assert len(denied) == 4
    guard = await (await signed_in(local, "guard")).get(PAGES[0])
    assert "API tokens" not in guard.text, "tokens have an operation of their own"
    assert "<form" not in guard.text, "and so has ending sessions"


async def test_nothing_changes_without_the_csrf_token_or_from_another_site(local: House) -> None:
    browser = await signed_in(local, "admin")
    record, _ = TokenStore(local.home).create("eve", "viewer", HOUR)
    csrf = browser.cookies[CSRF_COOKIE]
    for form in ({}, {"csrf": ""}, {"csrf": csrf[::-1]}):
        assert (await browser.post("/auth/ui/tokens/revoke", {"id": record.id, **form})).status == 403
    there = {"id": record.id, "csrf": csrf}
    assert (await browser.post("/auth/ui/tokens/revoke", there, sec_fetch_site="cross-site")).status == 403
    assert (await browser.get(f"/auth/ui/tokens/revoke?id={record.id}")).status == 404
    assert TokenStore(local.home).read().find(record.id).revoked_at is None


async def test_revoking_a_token_is_recorded_and_ends_the_sessions_begun_with_it(local: House) -> None:
    admin = await signed_in(local, "admin")
    record, token = TokenStore(local.home).create("eve", "viewer", HOUR)
    eve = local.browser()
    await submit(eve, token)
    listed = (await admin.get(PAGES[0])).text
    assert f'id="token-{record.id}"' in listed
    assert token not in listed
    reply = await admin.post("/auth/ui/tokens/revoke", {"id": record.id, "csrf": admin.cookies[CSRF_COOKIE]})
    assert (reply.status, reply.location) == (303, "/auth/ui/gateway?done=token")
    assert (await eve.get("/v1/jobs")).status == 401
    assert '"kind":"token.revoked"' in audit_file(local.home).read_text()
    shown = (await admin.get(reply.location)).text
    assert "The token is revoked" in shown
    assert re.search(rf'id="token-{record.id}">.*?badge bad">revoked', shown, re.DOTALL)


async def test_an_admin_can_end_the_session_of_another_user(local: House) -> None:
    admin, eve = await signed_in(local, "admin"), await signed_in(local, "viewer", "eve")
    (identifier,) = [each.id for each in local.service.checks.authenticator.sessions.records if each.name == "eve"]
    reply = await admin.post("/auth/ui/sessions/revoke", {"id": identifier, "csrf": admin.cookies[CSRF_COOKIE]})
    assert reply.location == "/auth/ui/gateway?done=session"
    assert (await eve.get("/v1/jobs")).status == 401
    assert f"session-{identifier}" not in (await admin.get(PAGES[0])).text
    (revoked,) = in_force(local)
    assert (revoked.id, revoked.by) == (identifier, "ada")


async def test_the_audit_log_page_searches_records_and_escapes_their_content(local: House) -> None:
    admin = await signed_in(local, "admin")
    await local.browser().get("/v1/<script>alert(1)</script>")
    found = (await admin.get("/auth/ui/audit-log")).text
    assert "<script>alert" not in found
    assert "auth.login" in found
    nothing = (await admin.get("/auth/ui/audit-log?principal=nobody-else&operation=%3Cb%3E")).text
    assert "No matching records." in nothing
    assert "<b>" not in nothing
    mine = (await admin.get("/auth/ui/audit-log?principal=ad*&decision=allow")).text
    assert mine.count("badge ok") == mine.count('<td class="name">ada</td>') > 0


async def test_the_audit_log_page_verifies_the_chain_and_reports_damage(local: House) -> None:
    admin = await signed_in(local, "admin")
    csrf = {"csrf": admin.cookies[CSRF_COOKIE]}
    good = (await admin.post("/auth/ui/audit-log/verify", csrf)).text
    assert re.search(r"All \d+ lines in 1 segment verified", good)
    log = audit_file(local.home)
    # Of the same length, as somebody would do it who knows that it is being written to.
    log.write_bytes(log.read_bytes().replace(b'"method":"GET"', b'"method":"PUT"', 1))
    bad = (await admin.post("/auth/ui/audit-log/verify", csrf)).text
    assert "Verification failed" in bad


async def test_the_pki_page_shows_certificates_and_commands_and_reports_damaged_files(local: House) -> None:
    admin = await signed_in(local, "admin")
    assert "The authorities are on another machine." in (await admin.get("/auth/ui/pki")).text
    issuer = LocalIssuer(local.home.pki, PkiConfig(trust_domain="signin.test"))
    issuer.ensure_authorities()
    for name in ("tm-1", "tm-2"):
        identity = SpiffeId.process("signin.test", Role.TASKMANAGER, name)
        issuer.issue_to(local.home.identity(Role.TASKMANAGER, name), identity)
    (local.home.identity(Role.TASKMANAGER, "tm-2") / "chain.pem").write_text("not a certificate")
    shown = (await admin.get("/auth/ui/pki")).text
    assert shown.count("taskmanager/tm-1") >= 1
    assert 'class="notice bad"' in shown, "what is damaged is told, and the rest shown"
    for kind in ("root", "internal", "edge"):
        assert f'<td class="name">{kind}' in shown
    assert "PRIVATE" not in shown
    # What signs is done where the keys are: the page has the commands.
    for verb in ("prepare", "activate", "finish"):
        assert f"sluice pki rotate {verb} internal --wait 60" in shown
    (serial,) = set(re.findall(r"sluice pki revoke ([0-9a-f]+) --authority internal --reason key-compromise", shown))
    leaf = read_certificates(local.home.identity(Role.TASKMANAGER, "tm-1") / "chain.pem")[0]
    assert serial == f"{leaf.serial_number:x}", "the other one's certificate is damaged"


async def test_a_certificate_is_revoked_from_the_page_only_while_the_online_ca_runs(local: House) -> None:
    admin, config = await signed_in(local, "admin"), PkiConfig(trust_domain="signin.test")
    issuer = LocalIssuer(local.home, config)
    issuer.ensure_authorities()
    leaf = local.home.identity(Role.TASKMANAGER, "tm-1")
    issuer.issue_to(leaf, SpiffeId.process("signin.test", Role.TASKMANAGER, "tm-1"))
    issuer.issue_to(local.home.identity(Role.AUTH, "auth-1"), SpiffeId.process("signin.test", Role.AUTH, "auth-1"))
    serial = f"{read_certificates(leaf / 'chain.pem')[0].serial_number:x}"
    act, csrf = "/auth/ui/certificates/revoke", {"csrf": admin.cookies[CSRF_COOKIE]}
    wanted = {"id": serial, "reason": "key-compromise", **csrf}
    # 1. Nobody to ask: the page has the command, and the form would say so.
    assert f'action="{act}"' not in (await admin.get(PAGES[2])).text
    assert (await admin.post(act, wanted)).status == 503
    async with online_ca(local.home, config, CaConfig()):
        # 2. The authority is there: a form for each leaf but its own.
        shown = (await admin.get(PAGES[2])).text
        assert re.findall(r'name="id" value="([0-9a-f]+)"', shown).count(serial) == 1
        assert shown.count(f'action="{act}"') == 2, "tm-1 and auth-1"
        for form, status in (
            ({**wanted, "csrf": ""}, 403),
            ({**wanted, "reason": "why not"}, 400),
            ({**wanted, "id": "abcdef"}, 404),
            ({**wanted, "id": f"{serial} --force"}, 404),
        ):
            assert (await admin.post(act, form)).status == status
        assert f"revoked {serial}" not in audit_file(local.home).read_text()
        # 3. It is revoked, and on record.
        reply = await admin.post(act, wanted)
        assert (reply.status, reply.location) == (303, "/auth/ui/pki?done=certificate")
        after = (await admin.get(reply.location)).text
        assert "The certificate is revoked" in after
        assert re.search(r'taskmanager/tm-1</code></td><td><span class="badge bad">revoked', after)
        assert f'value="{serial}"' not in after
    assert '"kind":"certificate.revoked"' in audit_file(local.home).read_text()
    store = RevocationStore(local.home.pki, config, clock=utc_now)
    (entry,) = store.revocations(AuthorityKind.INTERNAL)
    assert (entry.serial, entry.reason) == (serial, Reason.KEY_COMPROMISE)


async def test_revoking_a_user_certificate_revokes_it_at_the_gateway_too(local: House, tmp_path: Path) -> None:
    admin, config = await signed_in(local, "admin"), PkiConfig(trust_domain="signin.test")
    issuer = LocalIssuer(local.home, config)
    issuer.ensure_authorities()
    issuer.issue_to(local.home.identity(Role.AUTH, "auth-1"), SpiffeId.process("signin.test", Role.AUTH, "auth-1"))
    async with online_ca(local.home, config, CaConfig()):
        # It is on the user's machine; here the ledger alone has it.
        issuer.issue_to(tmp_path / "eve", SpiffeId.process("signin.test", Role.USER, "eve"))
        leaf = read_certificates(tmp_path / "eve" / "chain.pem")[0]
        shown = (await admin.get(PAGES[2])).text
        assert re.search(r"user/eve</code></td>.*?ledger", shown, re.DOTALL)
        wanted = {"id": f"{leaf.serial_number:x}", "reason": "affiliation-changed"}
        reply = await admin.post("/auth/ui/certificates/revoke", {**wanted, "csrf": admin.cookies[CSRF_COOKIE]})
        assert reply.status == 303
    (revoked,) = in_force(local)
    assert (revoked.kind, revoked.id, revoked.by) == ("certificate", leaf.fingerprint(SHA256()).hex(), "ada")
