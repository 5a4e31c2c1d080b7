"""What counts as an answer of Envoy's admin interface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from sluice.gateway.proxy.envoy_admin import EDGE_LISTENER, EnvoyAdmin

LISTENERS = json.dumps(
    {
        "listener_statuses": [
            {"name": EDGE_LISTENER, "local_address": {"socket_address": {"address": "127.0.0.1", "port_value": 8443}}}
        ]
    }
)


@pytest.fixture
async def answers(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """What the interface answers to ``/listeners``; it listens on ``admin.sock``."""
    given = {"listeners": LISTENERS}

    async def ready(_request: web.Request) -> web.Response:
        return web.Response(text="LIVE")

    async def listeners(_request: web.Request) -> web.Response:
        return web.Response(text=given["listeners"])

    app = web.Application()
    app.router.add_get("/ready", ready)
    app.router.add_get("/listeners", listeners)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "admin.sock")).start()
    yield given
    await runner.cleanup()


@pytest.mark.usefixtures("answers")
async def test_the_port_of_a_listener_that_serves(tmp_path: Path) -> None:
    admin = EnvoyAdmin(tmp_path / "admin.sock", 0)
    assert await admin.serving_port() == 8443
    assert await admin.serving_port("another") == 0


@pytest.mark.parametrize("answer", [LISTENERS[:-9], "", "no JSON"])
async def test_an_answer_that_was_cut_off_is_none(answers: dict[str, str], tmp_path: Path, answer: str) -> None:
    answers["listeners"] = answer
    assert await EnvoyAdmin(tmp_path / "admin.sock", 0).serving_port() == 0
