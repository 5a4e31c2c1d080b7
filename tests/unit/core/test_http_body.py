"""The bounded reader of HTTP bodies, with peers that send bodies in pieces or not as announced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import aiohttp
import pytest
from aiohttp import web

from sluice.core.http_body import BodyTooLarge, read_body

PIECE = b"0123456789abcdef"
CONTENT = PIECE * 40
ANNOUNCED = f"HTTP/1.1 200 OK\r\nContent-Length: {len(CONTENT)}\r\n\r\n".encode()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextlib.asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[str]:
    """Yield the URL of a server that sends each piece in its own packet, then closes the connection."""

    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)  # so that they do not arrive as one
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await ended.wait()


async def fetched(url: str, limit: int) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await read_body(answer.content, limit)


WHOLE = [
    pytest.param([ANNOUNCED, *[PIECE] * 40], id="announced length"),
    pytest.param([CHUNKED, *[chunk(PIECE)] * 40, LAST_CHUNK], id="chunks"),
    pytest.param([b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", *[PIECE] * 40], id="until the end"),
]


@pytest.mark.parametrize("pieces", WHOLE)
async def test_body_in_many_pieces_is_read_whole(pieces: Sequence[bytes]) -> None:
    async with answering(*pieces) as url:
        assert await fetched(url, len(CONTENT)) == CONTENT


@pytest.mark.parametrize("pieces", WHOLE)
async def test_body_of_one_byte_more_than_the_limit_is_refused(pieces: Sequence[bytes]) -> None:
    async with answering(*pieces) as url:
        with pytest.raises(BodyTooLarge, match="larger than 639 bytes"):
            await fetched(url, len(CONTENT) - 1)


async def test_endless_body_is_refused_as_soon_as_the_limit_is_passed() -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():  # which it is when nobody reads it any more
                writer.write(chunk(PIECE))
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        with pytest.raises(BodyTooLarge):
            await fetched(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", 1000)
        await ended.wait()


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([ANNOUNCED, *[PIECE] * 39], id="less than announced"),
        pytest.param([CHUNKED, *[chunk(PIECE)] * 39], id="no last chunk"),
        pytest.param([CHUNKED, chunk(PIECE), b"ff\r\n", PIECE], id="a chunk cut short"),
    ],
)
async def test_truncated_body_is_an_error(pieces: Sequence[bytes]) -> None:
    async with answering(*pieces) as url:
        with pytest.raises(aiohttp.ClientPayloadError):
            await fetched(url, len(CONTENT))


async def test_body_longer_than_its_content_length_is_cut_there() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\nConnection: close\r\n\r\n", *[PIECE] * 3) as url:
        assert await fetched(url, 16) == PIECE


async def test_empty_body_is_empty() -> None:
    async with answering(b"HTTP/1.1 204 No Content\r\n\r\n") as url:
        assert await fetched(url, 0) == b""


async def test_server_reads_a_chunked_request_completely_within_its_limit() -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        try:
            return web.Response(body=await read_body(request.content, len(CONTENT)))
        except BodyTooLarge as error:
            return web.Response(status=413, text=str(error))

    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield PIECE
            await asyncio.sleep(0.001)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        url = f"http://{host}:{port}/"
        async with aiohttp.ClientSession() as session:
            async with session.post(url, data=pieces(40)) as answer:
                assert (answer.status, await answer.read()) == (200, CONTENT)
            async with session.post(url, data=pieces(41)) as answer:
                assert (answer.status, await answer.text()) == (413, "the body is larger than 640 bytes")
    finally:
        await runner.cleanup()
