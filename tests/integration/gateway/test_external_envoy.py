"""An Envoy that Sluice does not start: the tests check that its start and end are noticed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from sluice.gateway.errors import EnvoyFailed
from sluice.gateway.proxy.envoy_admin import EDGE_LISTENER, ExternalEnvoy

DEADLINE_SECONDS = 20.0


class Admin:
    """Envoy's admin interface on a Unix socket, started and stopped by the test."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.ready = True
        self.listeners = [EDGE_LISTENER]

    async def is_ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def list_listeners(self, _: web.Request) -> web.Response:
        address = {"socket_address": {"address": "0.0.0.0", "port_value": 8443}}  # noqa: S104  what Envoy would say
        return web.json_response(
            {"listener_statuses": [{"name": name, "local_address": address} for name in self.listeners]}
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/ready", self.is_ready)
        app.router.add_get("/listeners", self.list_listeners)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(self.socket)).start()
            yield
        finally:
            await runner.cleanup()
            self.socket.unlink(missing_ok=True)


async def test_an_external_envoy_is_waited_for_and_its_end_is_noticed_repeatedly(tmp_path: Path) -> None:
    admin = Admin(tmp_path / "admin.sock")
    envoy = ExternalEnvoy(admin.socket)
    for _ in range(2):
        waiting = asyncio.create_task(envoy.until_serving())
        async with asyncio.timeout(DEADLINE_SECONDS), admin.serving():
            assert await waiting == 8443
            leaving = asyncio.create_task(envoy.until_gone())
            await asyncio.sleep(0)
            assert not leaving.done()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await leaving


@pytest.mark.parametrize("state", ["not ready", "no edge listener"])
async def test_an_external_envoy_that_does_not_serve_yet_has_no_serving_port(tmp_path: Path, state: str) -> None:
    admin = Admin(tmp_path / "admin.sock")
    admin.ready = state != "not ready"
    admin.listeners = ["another"] if state == "no edge listener" else [EDGE_LISTENER]
    async with admin.serving():
        assert await ExternalEnvoy(admin.socket).serving_port() == 0


async def test_a_query_to_an_absent_external_envoy_is_an_error(tmp_path: Path) -> None:
    envoy = ExternalEnvoy(tmp_path / "admin.sock")
    assert await envoy.serving_port() == 0
    with pytest.raises(EnvoyFailed, match="does not answer to certs"):
        await envoy.ask("certs")
