"""The driver agent's client for Spark's UI: one HTTP request over a private unix socket, one bounded response.

Spark's UI opens no TCP port (``runtime/spark/plugin/ui/SluiceUi.scala``). A user's request goes to REST, from there to
the JobMaster, and then to this agent, over the connection that the agent has opened. Only GET requests for unambiguous
paths are allowed. Only status, media type, location and body of a response are forwarded, so no cookies and no other
headers of the driver reach a browser.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from sluice.core import UnsafeFile, untrusted_socket
from sluice.runtime.messages import UiPage, UiRequest

UI_SOCKET = "ui"
MAX_ANSWER_BYTES = 3 << 20
"""Maximum size of a response, so that it fits into an answer to the JobMaster. Spark's pages are far smaller."""
ANSWER_SECONDS = 12.0

_PATH = re.compile(r"/[A-Za-z0-9._~/-]{0,1000}")
_QUERY = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/?%-]{0,1000}")
_BASE = re.compile(r"/[A-Za-z0-9/-]{0,200}")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2}) ")
_HEAD_END = b"\r\n\r\n"


async def ask_ui(socket: Path, request: UiRequest) -> UiPage:
    """Request a page of Spark's UI; status 502 to 504: the UI is not available."""
    if not (_PATH.fullmatch(request.path) and _QUERY.fullmatch(request.query) and _BASE.fullmatch(request.base)):
        return UiPage(status=400)
    target = f"{request.path}?{request.query}" if request.query else request.path
    head = f"GET {target} HTTP/1.0\r\nHost: driver\r\nX-Forwarded-Context: {request.base}\r\n\r\n".encode()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return parse(await _exchange(socket, head))
    except TimeoutError:
        return UiPage(status=504)
    except (FileNotFoundError, ConnectionError):
        return UiPage(status=503)  # there is no SparkContext, or too many requests
    except (UnsafeFile, OSError, ValueError):
        return UiPage(status=502)


async def _exchange(socket: Path, head: bytes) -> bytes:
    with untrusted_socket(socket.parent, socket.name) as path:
        reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(head)
        await writer.drain()
        answer = bytearray()
        while chunk := await reader.read(64 << 10):
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES:
                raise ValueError("the page is too large")
        return bytes(answer)
    finally:
        writer.close()


def parse(answer: bytes) -> UiPage:
    """Parse an HTTP/1.0 response.

    Raises:
        ValueError: it is not a valid response.
    """
    head, end, body = answer.partition(_HEAD_END)
    lines = head.split(b"\r\n")
    status = _STATUS.match(lines[0] + b" ")
    if not end or status is None:
        raise ValueError("the driver's answer is not HTTP")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if b"transfer-encoding" in headers or b"content-encoding" in headers:
        raise ValueError("the driver's answer is encoded, although the request did not allow that")
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return UiPage(
        status=int(status[1]),
        media=media.decode("ascii")[:100],
        location=headers.get(b"location", b"").decode("ascii")[:2000],
        body=body,
    )
