"""A simulated cluster behind a real auth service and the real Envoy, looked at with a real Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.core.tasks import end_tasks
from sluice.gateway.config import GatewayConfig
from sluice.gateway.service import route_file
from sluice.pki.assertions.keys import AssertionKeys, assertion_keys_file
from sluice.pki.assertions.open_streams import CheckHolders, OpenStreams
from sluice.pki.spiffe_id import Role
from sluice.runtime.rest.auth_service.stream_validity import check_nothing
from sluice.runtime.rest.protocol.streams import Streams
from sluice.runtime.rest.serving import handler_of
from sluice.runtime.rest_server.routes import published_routes
from sluice.runtime.rest_server.server import RestServer, make_application
from tests.free_ports import free_port
from tests.integration.gateway.conftest import BackgroundLoop, EdgeAuthority, Gateway
from tests.simulated_cluster import SimulatedDispatcher, SimulatedResourceManager, simulated
from tests.system.browser.chromium import Tab, chromium, pin

WATCH = """
window.violations = [];
document.addEventListener('securitypolicyviolation', event =>
  window.violations.push(event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sourceFile));
"""
"""Before any page: remembers what the page's policy refuses."""


@dataclass
class Stage:
    """A dashboard, and a browser that has not signed in."""

    gateway: Gateway
    dispatcher: SimulatedDispatcher
    manager: SimulatedResourceManager
    tab: Tab
    url: str


class CompleteGateway(Gateway):
    """A gateway in front of a simulated cluster's REST."""

    def start_with(
        self,
        dispatcher: SimulatedDispatcher,
        manager: SimulatedResourceManager,
        standing: CheckHolders = check_nothing,
    ) -> None:
        """Start the REST and the gateway; ``standing`` decides which event streams may stay open."""
        self.upstream = _Rest(self.home, dispatcher, manager, standing)  # type: ignore[assignment]
        self.start()

    def publish(self) -> None:
        write_secret(route_file(self.home), json.dumps(published_routes()).encode())


class _Rest:
    def __init__(
        self, home: Home, dispatcher: SimulatedDispatcher, manager: SimulatedResourceManager, standing: CheckHolders
    ) -> None:
        self._home, self._dispatcher, self._manager, self._standing = home, dispatcher, manager, standing

    async def serve(self, path: Path) -> None:
        streams = OpenStreams(self._standing)
        cluster = simulated(self._dispatcher, self._manager, self._home.root)
        cluster = dataclasses.replace(cluster, streams=Streams(streams))
        keys = AssertionKeys(assertion_keys_file(self._home)).keys
        server = RestServer(make_application(lambda route: handler_of(route, cluster), keys), path)
        watching = asyncio.create_task(streams.watch())
        await server.start()
        try:
            await asyncio.Event().wait()
        finally:
            await end_tasks(watching)
            await server.close()


@contextlib.asynccontextmanager
async def stage(tmp_path: Path, *, running: int = 3, ended: int = 40, taskmanagers: int = 5) -> AsyncIterator[Stage]:
    """Start a simulated cluster of this size, its gateway, and a browser."""
    home, loop, port = Path(tempfile.mkdtemp(prefix="slc")), BackgroundLoop(), free_port()
    config = GatewayConfig(port=port, public_url=f"https://localhost:{port}", authorization_timeout=10.0)
    gateway = CompleteGateway(Home.at(home).create(), EdgeAuthority(tmp_path / "pki"), loop, config)
    dispatcher = SimulatedDispatcher(running, ended)
    manager = SimulatedResourceManager(taskmanagers, busy=list(dispatcher.details)[:running])
    try:
        await asyncio.to_thread(gateway.start_with, dispatcher, manager)
        edge = gateway.home.identity(Role.GATEWAY, "edge") / "chain.pem"
        async with chromium(tmp_path / "profile", [pin(edge)]) as tab:
            yield Stage(gateway, dispatcher, manager, tab, f"https://localhost:{port}")
    finally:
        await asyncio.to_thread(gateway.stop)
        loop.close()
        shutil.rmtree(home)


Stages = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Stage]:
    """A small cluster."""
    async with stage(tmp_path) as made:
        yield made


async def sign_in(scene: Stage, token: str, target: str = "/ui") -> None:
    """Open a page, paste a token into the sign-in form, and end up on the page."""
    await scene.tab.go(scene.url + target)
    await scene.tab.until("document.querySelector('#api_token')", "the page to sign in")
    await scene.tab.type_into("#api_token", token)
    await scene.tab.click("#sign-in-with-token")
    await scene.tab.until(f"location.href === '{scene.url}{target}' && window.htmx", "the page one wanted to see")


async def settled(tab: Tab) -> None:
    """Wait until all parts of the page have loaded."""
    await tab.until("!document.querySelector('.htmx-request, [data-part]:not([data-asked]):not([hidden])')", "settled")
