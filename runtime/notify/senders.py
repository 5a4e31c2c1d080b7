"""Senders: each delivers a message to its receiver and returns once the receiver has confirmed it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Protocol

import aiohttp

from sluice.core import StoreError, read_secret, tcp_connector
from sluice.runtime.notify.config import MailConfig, Receiver, WebhookConfig, is_https
from sluice.runtime.notify.errors import NotifyError
from sluice.runtime.notify.mail import MailSender
from sluice.runtime.notify.message import Message
from sluice.runtime.notify.trust import receiver_context

SEND_SECONDS = 30.0
"""Total timeout for sending a message."""
CONNECT_SECONDS = 10.0
MAX_SECRET_BYTES = 16 << 10
"""Largest file with a URL or a token."""


class Sender(Protocol):
    """Delivers messages to one receiver."""

    async def send(self, message: Message) -> str:
        """Deliver ``message``; return a complaint about a delivered message, usually empty.

        Raises :class:`SluiceError` when the receiver did not confirm it.
        """
        ...


def sender_of(config: Receiver, *, seconds: float = SEND_SECONDS) -> Sender:
    """Return the sender for ``config``. It reads files only when it sends: a missing one does not prevent startup."""
    return MailSender(config, seconds) if isinstance(config, MailConfig) else WebhookSender(config, seconds)


class WebhookSender:
    """Sends messages as JSON by POST."""

    def __init__(self, config: WebhookConfig, seconds: float) -> None:
        self._config = config
        self._timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)

    async def send(self, message: Message) -> str:
        """Send one request; a 2xx status confirms it."""
        url, headers, context = await asyncio.to_thread(self._prepared)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=tcp_connector(), timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
                ) as session,
                # A redirect is not a confirmation, and following it would send the token elsewhere.
                session.post(url, data=message.json(), headers=headers, ssl=context, allow_redirects=False) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise NotifyError(f"the webhook {self._config.name} answered {answer.status}")
                return ""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NotifyError(
                f"the webhook {self._config.name} did not confirm: {type(error).__name__}",
                "check url and ca_file, then try again with `sluice notify test`",
            ) from None

    def _prepared(self) -> tuple[str, dict[str, str], ssl.SSLContext]:
        """Read the URL, the headers and the trust anchors for one request."""
        config = self._config
        # Errors contain neither the URL, which may be a secret, nor the server's answer, which may be anything.
        url = config.url or _line(config.url_file, "URL")
        if not is_https(url):
            raise StoreError(f"{config.url_file} holds no HTTPS URL such as https://chat.example.com/hooks/sluice")
        headers = {"content-type": "application/json"}
        if config.token_file:
            headers["authorization"] = f"Bearer {_line(config.token_file, 'bearer token')}"
        return url, headers, receiver_context(config.ca_file)


def _line(file: str, what: str) -> str:
    """Read the single line of printable ASCII in a secret file."""
    text = read_secret(Path(file), MAX_SECRET_BYTES).decode("ascii", errors="replace").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise StoreError(f"{file} holds no {what}", "write one line of printable ASCII")
    return text
