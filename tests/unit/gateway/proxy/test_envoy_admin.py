"""Which answers of Envoy's admin interface are accepted."""

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
    """A fake admin interface on ``admin.sock``; the test can change its answer to ``/listeners``."""
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
async def test_the_port_of_a_serving_listener_is_reported_and_zero_for_an_unknown_one(tmp_path: Path) -> None:
    admin = EnvoyAdmin(tmp_path / "admin.sock", 0)
    assert await admin.serving_port() == 8443
    assert await admin.serving_port("another") == 0


@pytest.mark.parametrize("answer", [LISTENERS[:-9], "", "no JSON"])
async def test_a_truncated_or_malformed_admin_answer_reports_no_port(
    answers: dict[str, str], tmp_path: Path, answer: str
) -> None:
    answers["listeners"] = answer
    assert await EnvoyAdmin(tmp_path / "admin.sock", 0).serving_port() == 0
