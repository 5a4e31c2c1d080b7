"""A real Chromium, told what to do over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

DEADLINE_SECONDS = 120.0
MAX_MESSAGE_BYTES = 64 << 20


def pin(certificate_file: Path) -> str:
    """Return the hash that makes Chromium accept exactly the server with this certificate's key."""
    certificate = x509.load_pem_x509_certificates(certificate_file.read_bytes())[0]
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(key).digest()).decode()


class Tab:
    """One tab of a browser with its own cookies."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._number = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        message = {"id": self._number, "sessionId": self._session, "method": method, "params": parameters}
        return await _exchange(self._socket, message)

    async def go(self, url: str) -> None:
        """Navigate, and wait until the page (wherever redirects led) is there."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'", f"{url} is loaded")

    async def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, condition: str, what: str) -> None:
        """Poll until a JavaScript expression holds; a page that is just being replaced counts as "not yet"."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            with contextlib.suppress(AssertionError, ProtocolError):
                if await self.evaluate(f"Promise.resolve({condition}).then(Boolean)"):
                    return
            if time.monotonic() > deadline:
                where = await self.evaluate("location.href + ' ' + document.body.innerText")
                raise AssertionError(f"not in time: {what}; the browser is at {where}")
            await asyncio.sleep(0.05)

    async def text(self) -> str:
        """Return the visible text of the page."""
        return str(await self.evaluate("document.body.innerText"))

    async def type_into(self, selector: str, text: str) -> None:
        """Focus a field and type, key by key as far as the page can tell."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.call("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of an element, which is scrolled to."""
        box = await self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            " found.scrollIntoView({block: 'center', behavior: 'instant'}); const r = found.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    async def cookies(self, url: str) -> dict[str, dict[str, Any]]:
        """The cookies that would be sent to ``url``, with their attributes."""
        answer = await self.call("Network.getCookies", urls=[url])
        return {cookie["name"]: cookie for cookie in answer["cookies"]}

    async def put_cookies(self, cookies: Iterable[dict[str, Any]], url: str) -> None:
        """Put cookies (back) into the browser, as somebody could who has copied them."""
        for cookie in cookies:
            kept = {key: cookie[key] for key in ("name", "value", "secure", "httpOnly", "path") if key in cookie}
            await self.call("Network.setCookie", url=url, sameSite="Lax", **kept)


class ProtocolError(Exception):
    """Chromium refused a command."""


@contextlib.asynccontextmanager
async def chromium(profile: Path, pins: Iterable[str]) -> AsyncIterator[Tab]:
    """Start Chromium with an empty profile; it ends with the block."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "there is no Chromium; scripts/ensure-chromium installs it"
    process = await asyncio.create_subprocess_exec(
        program,
        "--headless=new",
        # The tests may run as root in a container, where Chromium's own sandbox cannot.
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        f"--ignore-certificate-errors-spki-list={','.join(pins)}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with aiohttp.ClientSession() as session:
            url = await _devtools_url(profile / "DevToolsActivePort", process)
            async with session.ws_connect(url, max_msg_size=MAX_MESSAGE_BYTES) as socket:
                yield await _first_tab(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _devtools_url(announcement: Path, process: asyncio.subprocess.Process) -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        lines = _lines(announcement)
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert process.returncode is None, f"Chromium ended by itself ({process.returncode})"
        assert time.monotonic() < deadline, "Chromium does not come up"
        await asyncio.sleep(0.05)


def _lines(announcement: Path) -> list[str]:
    return announcement.read_text().split() if announcement.exists() else []


async def _first_tab(socket: aiohttp.ClientWebSocketResponse) -> Tab:
    made = await _exchange(socket, {"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}})
    attached = await _exchange(
        socket,
        {"id": 2, "method": "Target.attachToTarget", "params": {"targetId": made["targetId"], "flatten": True}},
    )
    tab = Tab(socket, attached["sessionId"])
    await tab.call("Page.enable")
    await tab.call("Network.enable")
    return tab


async def _exchange(socket: aiohttp.ClientWebSocketResponse, message: dict[str, Any]) -> dict[str, Any]:
    await socket.send_json(message)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            answer = await socket.receive_json()
            if answer.get("id") == message["id"] and answer.get("sessionId") == message.get("sessionId"):
                if "error" in answer:
                    raise ProtocolError(answer["error"].get("message", ""))
                result: dict[str, Any] = answer["result"]
                return result
