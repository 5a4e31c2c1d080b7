"""A proxy that adds the default protocol to the ports of applied Services.

API servers do this from 1.21 on. Spark 4.3 omits the protocol, and version 1.20 then refuses the Service.
A submitter reaches the API server through this proxy; everything else passes unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.kubernetes.api_server import ApiServer
from tests.outside import OutsideAuthority

MAX_BYTES = 4 << 20


@contextlib.contextmanager
def with_port_defaults(server: ApiServer, directory: Path) -> Iterator[ApiServer]:
    """Run the proxy within the block; yields the same API server at the proxy's address."""
    files = OutsideAuthority(directory).issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "chain.pem", files / "key.pem")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(partial(_serve, server), "127.0.0.1", ssl=context)

    async def stop(listener: asyncio.Server) -> None:
        listener.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    listener = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield ApiServer(f"https://127.0.0.1:{port}", files / "ca.pem", server.process, server.audit)
    finally:
        asyncio.run_coroutine_threadsafe(stop(listener), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _serve(server: ApiServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    port = int(server.url.rpartition(":")[2])
    context = ssl.create_default_context(cafile=str(server.ca_file))
    answers, requests = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    back = asyncio.create_task(_copy(answers, writer))
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while await _pass_request(reader, requests):
            pass
        await _copy(reader, requests)
    requests.close()
    back.cancel()
    writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
        writer.close()


async def _pass_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Forward one request; returns whether another HTTP request can follow (not after an upgrade)."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await _body(reader, headers)
    method, path, _ = first.split(" ")
    if method == "PATCH" and "/services/" in path:
        content = json.loads(body)
        for each in content["spec"]["ports"]:
            each.setdefault("protocol", "TCP")
        body = json.dumps(content).encode()
    kept = [line for line in lines if line.partition(":")[0].lower() not in {"content-length", "transfer-encoding"}]
    length = [f"content-length: {len(body)}"] if body or method not in {"GET", "DELETE"} else []
    writer.write("\r\n".join([first, *kept, *length, "", ""]).encode("latin-1") + body)
    await writer.drain()
    return "upgrade" not in headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(min(int(headers.get("content-length", "0")), MAX_BYTES))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(min(size, MAX_BYTES))
        await reader.readline()
    await reader.readline()
    return body
