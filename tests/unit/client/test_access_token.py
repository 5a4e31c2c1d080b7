"""The command prefers an access token to its credential where that pays.

It falls back to the credential.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sluice.cli.errors import RefusedError, UnreachableError
from sluice.client.access import GatewayAccess
from sluice.client.access_token import MARGIN_SECONDS, AccessTokenCache
from sluice.client.rest_client import GatewayClient


class Gateway:
    """A fake gateway that accepts one credential and one access token, and records what requests show."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self.good = {"credential", "pass-1"}
        self.exchange: object = {"pass": "pass-1", "expires_in": 300}

    async def answer(self, request: web.Request) -> web.Response:
        bearer = request.headers["authorization"].removeprefix("Bearer ")
        self.shown.append((request.path, bearer))
        if bearer not in self.good:
            status = 401 if bearer == "credential" else 403
            return web.json_response({"detail": f"{bearer} was revoked"}, status=status)
        if request.path == "/auth/exchange":
            return web.json_response(self.exchange)
        return web.json_response({"ok": True})


@pytest.fixture
async def door(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Gateway, GatewayClient]]:
    gateway = Gateway()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", gateway.answer)
    async with TestServer(application) as server:
        headers = {"authorization": "Bearer credential"}
        async with aiohttp.ClientSession(headers=headers) as session:
            client = GatewayClient(GatewayAccess(str(server.make_url("")).rstrip("/"), None, "credential"), session)
            monkeypatch.setattr(client._trust, "context", lambda: True)
            yield gateway, client


async def test_the_credential_is_exchanged_for_an_access_token_at_the_second_call(
    door: tuple[Gateway, GatewayClient],
) -> None:
    gateway, client = door
    for number in range(4):
        await client.get(f"/v1/{number}")
    assert gateway.shown == [
        ("/v1/0", "credential"),
        ("/auth/exchange", "credential"),
        ("/v1/1", "pass-1"),
        ("/v1/2", "pass-1"),
        ("/v1/3", "pass-1"),
    ]


async def test_a_submission_is_sent_with_the_credential(door: tuple[Gateway, GatewayClient], tmp_path: Path) -> None:
    gateway, client = door
    for number in range(3):
        await client.get(f"/v1/{number}")
    (tmp_path / "p.py").write_text("1")
    with pytest.raises(KeyError):
        await client.submit(tmp_path / "p.py", {})  # this gateway answers something else
    assert gateway.shown[-1] == ("/v1/jobs", "credential")


async def test_a_revoked_access_token_is_replaced_by_the_credential(
    door: tuple[Gateway, GatewayClient],
) -> None:
    gateway, client = door
    for number in range(2):
        await client.get(f"/v1/{number}")
    gateway.good.remove("pass-1")
    assert await client.get("/v1/2") == {"ok": True}
    assert gateway.shown[-2:] == [("/v1/2", "pass-1"), ("/v1/2", "credential")]
    gateway.good.clear()
    with pytest.raises(UnreachableError, match="credential was revoked"):
        await client.get("/v1/3")
    assert gateway.shown[-1] == ("/v1/3", "credential"), "nothing is exchanged again"


@pytest.mark.parametrize(
    "answer", [{}, {"pass": "", "expires_in": 5}, {"pass": 7, "expires_in": 5}, {"pass": "é", "expires_in": 300}, []]
)
async def test_an_unusable_exchange_answer_leaves_the_credential_in_use(
    door: tuple[Gateway, GatewayClient], answer: object
) -> None:
    gateway, client = door
    gateway.exchange = answer
    for number in range(4):
        assert await client.get(f"/v1/{number}") == {"ok": True}
    assert [path for path, _ in gateway.shown].count("/auth/exchange") == 1
    assert {bearer for _, bearer in gateway.shown} == {"credential"}


async def test_a_request_refused_with_both_reports_the_refusal_of_the_credential(
    door: tuple[Gateway, GatewayClient],
) -> None:
    gateway, client = door
    await client.get("/v1/0")
    await client.get("/v1/1")
    gateway.good -= {"pass-1", "credential"}
    gateway.good.add("other")
    with pytest.raises((UnreachableError, RefusedError), match="credential was revoked"):
        await client.patch("/v1/1")


def test_an_access_token_is_dropped_before_it_expires_and_hidden_in_repr() -> None:
    held = AccessTokenCache()
    body = json.dumps({"pass": "secret-pass", "expires_in": 60}).encode()
    assert held.take(200, body, 100.0) == "secret-pass"
    assert held.current(160.0 - MARGIN_SECONDS - 0.1) == "secret-pass"
    assert held.current(160.0 - MARGIN_SECONDS) is None
    assert "secret" not in repr(held)
    assert held.take(403, body, 100.0) is None
    assert not held.is_due()
