"""The dashboard's live events in a real browser, signed in with each kind of credential.

The event streams stay open while the credential is valid, and end with it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.authn.credential_validity import check_in
from sluice.gateway.config import GatewayConfig, OidcConfig
from sluice.gateway.credentials.session_store import revoke_sessions
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.credentials.users import UserStore
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions.open_streams import CheckHolders, Holders
from tests.free_ports import free_port
from tests.identity_provider import CLIENT_ID, identity_provider, provider_tls
from tests.integration.gateway.conftest import BackgroundLoop, EdgeAuthority
from tests.integration.runtime.conftest import eventually
from tests.simulated_cluster import SimulatedDispatcher, SimulatedResourceManager
from tests.system.dashboard.conftest import CompleteGateway

from .chromium import DEADLINE_SECONDS, chromium, pin
from .conftest import Scene

pytestmark = pytest.mark.timeout(2 * DEADLINE_SECONDS)
"""What a browser is waited for in vain is named by then."""

PASSWORD = "correct horse battery"  # noqa: S105  of the tests' own user
LOOKS = 10
"""So often it is looked at who may stay, before a stream counts as one that stays; one look was enough to cut it."""
POLICY = b"""
version = 1
[roles.viewer]
allow = ["*"]
[groups]
staff = ["viewer"]
"""
COUNT = """
window.streams = [];
window.EventSource = class extends EventSource {
  constructor(...what) {
    super(...what);
    const seen = {opened: 0, failed: 0, told: 0};
    window.streams.push(seen);
    this.addEventListener('open', () => seen.opened += 1);
    this.addEventListener('error', () => seen.failed += 1);
    for (const name of ['job', 'overview']) this.addEventListener(name, () => seen.told += 1);
  }
};
"""
"""Before any page: counts what becomes of each stream of events that the page opens."""


@dataclass
class Looks:
    """Counts how often each principal was checked for permission to stay."""

    check: CheckHolders
    count: Counter[str] = field(default_factory=Counter)

    async def __call__(self, everybody: Holders) -> Holders:
        found = await self.check(everybody)
        self.count.update({who.principal for who in everybody})
        return found


@dataclass
class Live(Scene):
    """A scene with a simulated cluster whose jobs can make progress."""

    dispatcher: SimulatedDispatcher
    loop: BackgroundLoop
    looks: Looks

    async def happen(self) -> None:
        """Advance a running job by one finished task."""
        job_id, detail = next((key, each) for key, each in self.dispatcher.details.items() if not each.state.terminal)

        async def move() -> None:
            self.dispatcher.progress(job_id, tasks_finished=detail.progress.tasks_finished + 1)

        await asyncio.wrap_future(self.loop.start(move()))

    def refusals(self) -> list[tuple[str, str]]:
        """Return the principal and reason of each denial in the audit log."""
        records = map(json.loads, audit_file(self.gateway.home).read_text().splitlines())
        return [(each["principal"], each["reason"]) for each in records if each.get("decision") == "deny"]


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """Provide a cluster behind a gateway, a provider, and a browser that has not signed in."""
    tls, home, loop = provider_tls(tmp_path / "provider"), Path(tempfile.mkdtemp(prefix="slc")), BackgroundLoop()
    async with identity_provider(tls, "127.0.0.1") as provider:
        provider.user, port = "by-provider", free_port()
        url = f"https://localhost:{port}"
        oidc = OidcConfig(issuer=provider.issuer, client_id=CLIENT_ID, ca_file=str(provider.ca_file))
        config = GatewayConfig(port=port, public_url=url, oidc=oidc, authorization_timeout=10.0)
        gateway = CompleteGateway(Home.at(home).create(), EdgeAuthority(tmp_path / "pki"), loop, config)
        write_secret(gateway.home.gateway / "policy.toml", POLICY)
        UserStore(gateway.home).add("by-password", PASSWORD, roles=("viewer",), groups=())
        dispatcher, looks = SimulatedDispatcher(1, 1), Looks(check_in(gateway.home, config))
        try:
            await asyncio.to_thread(gateway.start_with, dispatcher, SimulatedResourceManager(2), looks)
            pins = [pin(gateway.identity / "chain.pem"), pin(tls / "chain.pem")]
            async with chromium(tmp_path / "profile", pins) as tab:
                yield Live(gateway, provider, tab, url, dispatcher, loop, looks)
        finally:
            await asyncio.to_thread(gateway.stop)
            loop.close()
            shutil.rmtree(home)


async def by_token(scene: Scene) -> None:
    token = scene.gateway.token(AccessRole.VIEWER, "by-token")
    await scene.tab.go(f"{scene.url}/auth/login?with=token&return_to=/ui")
    await scene.tab.type_into("#api_token", token)
    await scene.tab.click("#sign-in-with-token")


async def by_password(scene: Scene) -> None:
    await scene.tab.go(f"{scene.url}/auth/login?return_to=/ui")
    await scene.tab.type_into("#name", "by-password")
    await scene.tab.type_into("#password", PASSWORD)
    await scene.tab.click("form:has(#password) button")


async def by_provider(scene: Scene) -> None:
    await scene.tab.go(f"{scene.url}/auth/login?return_to=/ui")
    await scene.tab.click("a.main")


def end_token(home: Home, _: str) -> None:
    (record,) = TokenStore(home).read().records
    TokenStore(home).revoke(record.id)


def end_session(home: Home, name: str) -> None:
    assert len(revoke_sessions(home, lambda record: record.name == name)) == 1


SIGN_INS: dict[str, tuple[Callable[[Scene], Awaitable[None]], Callable[[Home, str], None]]] = {
    "by-token": (by_token, end_token),
    "by-password": (by_password, end_session),
    "by-provider": (by_provider, end_session),
}
"""Name of a user -> how they come in, and what ends that."""


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds, in the test's own process."""

    async def holds() -> bool:
        return await asyncio.to_thread(condition)

    await eventually(holds, what)


async def test_live_events_stay_open_until_the_sign_in_ends_for_each_kind_of_sign_in(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    await live.tab.call("Page.addScriptToEvaluateOnNewDocument", source=COUNT)
    for name in SIGN_INS:
        await _stays_and_ends(live, name, caplog)


async def _stays_and_ends(live: Live, name: str, caplog: pytest.LogCaptureFixture) -> None:
    tab, (sign_in, end) = live.tab, SIGN_INS[name]
    caplog.clear()
    # 1. The overview listens.
    await tab.call("Network.clearBrowserCookies")
    await sign_in(live)
    await tab.until("location.pathname === '/ui' && window.streams.length", f"the page of {name} listens")
    await tab.until("window.streams[0].opened + window.streams[0].failed", f"{name} is let in")
    refusals = live.refusals()
    # 2. However often it is looked at who may stay: this stream does, and tells what happens.
    await until(lambda: live.looks.count[name] >= LOOKS, f"it was looked at whether {name} may stay")
    told = await tab.evaluate("window.streams[0].told")
    await live.happen()
    await tab.until(f"window.streams[0].told > {told}", f"{name} is told what happens")
    streams = await tab.evaluate("window.streams")
    assert [(each["opened"], each["failed"]) for each in streams] == [(1, 0)], name
    assert "streams were cut" not in caplog.text
    assert live.refusals() == refusals
    # 3. It ends with what it was begun with: now page, log and audit log say so.
    await asyncio.to_thread(end, live.gateway.home, name)
    await tab.until("window.streams[0].failed", f"the stream of {name} ends")
    assert "streams were cut" in caplog.text
    await until(lambda: len(live.refusals()) > len(refusals), f"the page of {name} asks again and is refused")
