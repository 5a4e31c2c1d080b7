"""Brings a message to its receiver, and returns when the receiver has confirmed it."""

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
"""How long a message may take altogether."""
CONNECT_SECONDS = 10.0
MAX_SECRET_BYTES = 16 << 10
"""Of a URL or a token."""


class Sender(Protocol):
    """A way to a receiver."""

    async def send(self, message: Message) -> str:
        """Deliver ``message``; returns what was wrong although it is delivered, or nothing.

        Raises :class:`SluiceError`: nobody confirmed it.
        """
        ...


def sender_of(config: Receiver, *, seconds: float = SEND_SECONDS) -> Sender:
    """The sender for ``config``. It reads files when it sends: one that is missing keeps nothing from starting."""
    return MailSender(config, seconds) if isinstance(config, MailConfig) else WebhookSender(config, seconds)


class WebhookSender:
    """POST of JSON."""

    def __init__(self, config: WebhookConfig, seconds: float) -> None:
        self._config = config
        self._timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)

    async def send(self, message: Message) -> str:
        """One request; a status of 2xx confirms it."""
        url, headers, context = await asyncio.to_thread(self._prepared)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=tcp_connector(), timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
                ) as session,
                # A redirect is no confirmation, and would lead the token elsewhere.
                session.post(url, data=message.json(), headers=headers, ssl=context, allow_redirects=False) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise NotifyError(f"the webhook {self._config.name} answered {answer.status}")
                return ""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NotifyError(
                f"the webhook {self._config.name} did not confirm: {type(error).__name__}",
                "`sluice notify test` tries again; is its URL right, and its certificate of ca_file?",
            ) from None

    def _prepared(self) -> tuple[str, dict[str, str], ssl.SSLContext]:
        """Where to, with which headers, and whom to trust; read anew each time."""
        config = self._config
        # Neither the URL nor what the server says appears in errors: the one may be a secret, the other anything.
        url = config.url or _line(config.url_file, "URL")
        if not is_https(url):
            raise StoreError(f"{config.url_file} holds no URL as in https://chat.example.com/hooks/sluice")
        headers = {"content-type": "application/json"}
        if config.token_file:
            headers["authorization"] = f"Bearer {_line(config.token_file, 'bearer token')}"
        return url, headers, receiver_context(config.ca_file)


def _line(file: str, what: str) -> str:
    """The one line of printable ASCII in a secret file."""
    text = read_secret(Path(file), MAX_SECRET_BYTES).decode("ascii", errors="replace").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise StoreError(f"{file} holds no {what}", "one line of printable ASCII")
    return text
