"""The driver agent's requests to Spark's UI: one bounded request and answer, whatever the JVM sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sluice.runtime.messages import UiPage, UiRequest
from sluice.runtime.spark.driver import ui_client
from sluice.runtime.spark.driver.ui_client import ask_ui, parse

Serve = Callable[[bytes], Awaitable[Path]]
ASKED = UiRequest(path="/jobs/", query="id=1", base="/v1/jobs/7/ui")


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    servers = []

    async def start(answer: bytes) -> Path:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(answer.replace(b"HEAD", head))
            writer.close()

        servers.append(await asyncio.start_unix_server(talk, tmp_path / "ui"))
        return tmp_path / "ui"

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_a_ui_request_is_sent_and_its_answer_parsed(serve: Serve) -> None:
    path = await serve(b"HTTP/1.1 200 OK\r\nContent-Type: text/html;charset=utf-8\r\nSet-Cookie: a=b\r\n\r\nHEAD")
    page = await ask_ui(path, ASKED)
    assert (page.status, page.media, page.location) == (200, "text/html", "")
    assert page.body == (b"GET /jobs/?id=1 HTTP/1.0\r\nHost: driver\r\nX-Forwarded-Context: /v1/jobs/7/ui\r\n\r\n")


@pytest.mark.parametrize(
    "asked",
    [
        UiRequest(path="jobs", query="", base=""),
        UiRequest(path="/jobs HTTP/1.1\r\nX: y", query="", base="/x"),
        UiRequest(path="/jobs/", query="a b", base="/x"),
        UiRequest(path="/jobs/", query="", base="/x\r\nY: z"),
        UiRequest(path="/" + "x" * 2000, query="", base="/x"),
    ],
)
async def test_a_malformed_ui_request_is_not_sent(tmp_path: Path, asked: UiRequest) -> None:
    assert (await ask_ui(tmp_path / "none", asked)).status == 400


async def test_a_link_in_place_of_the_ui_socket_is_not_followed(serve: Serve, tmp_path: Path) -> None:
    path = await serve(b"HTTP/1.1 200 OK\r\n\r\nsecret")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "ui").symlink_to(path)
    assert await ask_ui(tmp_path / "job" / "ui", ASKED) == UiPage(status=502)


async def test_a_missing_ui_socket_is_answered_with_503(tmp_path: Path) -> None:
    assert await ask_ui(tmp_path / "none", ASKED) == UiPage(status=503)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Type: \xff\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * ui_client.MAX_ANSWER_BYTES,
    ],
)
async def test_a_malformed_ui_answer_is_answered_with_502(serve: Serve, answer: bytes) -> None:
    assert await ask_ui(await serve(answer), ASKED) == UiPage(status=502)


async def test_a_jvm_that_does_not_answer_is_answered_with_504(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ui_client, "ANSWER_SECONDS", 0.05)
    stop = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stop.wait()
        writer.close()

    server = await asyncio.start_unix_server(silent, tmp_path / "silent")
    assert await ask_ui(tmp_path / "silent", ASKED) == UiPage(status=504)
    stop.set()
    server.close()
    await server.wait_closed()


def test_a_redirect_of_the_ui_is_parsed_with_its_location() -> None:
    assert parse(b"HTTP/1.0 302 Found\r\nLocation: /jobs/\r\n\r\n") == UiPage(status=302, location="/jobs/")
