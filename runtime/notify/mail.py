"""Brings a message to a mail server: SMTP over TLS, by the standard library's client, in a thread.

That client waits as long as a server keeps writing. Here it reads through :class:`_Replies`, which ends a conversation
that takes too long or says too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path

from sluice.core import StoreError, read_secret
from sluice.runtime.notify.config import MailConfig
from sluice.runtime.notify.errors import NotifyError
from sluice.runtime.notify.message import Message
from sluice.runtime.notify.trust import receiver_context

MAX_REPLIES_BYTES = 64 << 10
"""All that a server may say in one conversation."""
MAX_PASSWORD_BYTES = 1 << 10
CONNECT_SECONDS = 10.0
_CHUNK_BYTES = 4096
_LOOK_SECONDS = 0.5


class MailSender:
    """E-mail to the addresses of one receiver."""

    def __init__(self, config: MailConfig, seconds: float) -> None:
        self._config = config
        self._seconds = seconds

    async def send(self, message: Message) -> str:
        """One mail; returns whom the server refuses. It has the mail for the others, which may still bounce."""
        budget = _Budget(self._seconds)
        try:
            return await asyncio.to_thread(self._send, message, budget)
        except asyncio.CancelledError:
            budget.end()  # a server that hangs must not keep this process from ending
            raise

    def _send(self, message: Message, budget: _Budget) -> str:
        config = self._config
        password = _password(Path(config.password_file)) if config.password_file else ""
        context = receiver_context(config.ca_file)
        mail = message.mail(config.sender, config.to)
        # What a server says may repeat what it was told, a password too: only its codes are told.
        try:
            with contextlib.closing(_connected(config, context, budget)) as client:
                if config.user:
                    client.login(config.user, password)
                refused = client.send_message(mail, config.sender, list(config.to))
                with contextlib.suppress(smtplib.SMTPException, OSError):
                    client.quit()  # the mail is there already
        except smtplib.SMTPRecipientsRefused as error:
            raise NotifyError(
                f"{config.host} refuses all addresses of {config.name}: {_codes(error.recipients)}"
            ) from None
        except smtplib.SMTPResponseException as error:
            raise NotifyError(
                f"{config.host} answered {error.smtp_code} to {config.name}", "see the log of the mail server"
            ) from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            raise NotifyError(
                f"{config.host} did not take the mail to {config.name}: {type(error).__name__}",
                "`sluice notify test` tries again; are host, port and tls right, and its certificate of ca_file?",
            ) from None
        if not refused:
            return ""
        return f"{config.host} refuses {len(refused)} of {len(config.to)} addresses: {_codes(refused)}"


def _codes(refused: Mapping[str, tuple[int, bytes]]) -> str:
    return ", ".join(str(code) for code in sorted({code for code, _ in refused.values()}))


def _connected(config: MailConfig, context: ssl.SSLContext, budget: _Budget) -> smtplib.SMTP:
    """A conversation over TLS; raises ``SMTPException`` or ``OSError``."""
    if config.tls == "implicit":
        return _ImplicitTls(config, context, budget)
    client = _Conversation(config, budget)
    try:
        client.starttls(context=context)  # raises when the server does not offer it
    except BaseException:
        client.close()
        raise
    return client


def _our_name(config: MailConfig) -> str:
    """In EHLO: a name that exists, while finding that of the machine may take a name server."""
    return config.sender.rpartition("@")[2]


class _Conversation(smtplib.SMTP):
    """SMTP within a time and a size."""

    def __init__(self, config: MailConfig, budget: _Budget) -> None:
        self._budget = budget
        super().__init__(config.host, config.server_port, _our_name(config), min(CONNECT_SECONDS, budget.seconds()))

    def getreply(self) -> tuple[int, bytes]:
        """One answer."""
        if self.file is None and self.sock is not None:  # a new connection, or TLS on it
            self.file = _Replies(self.sock, self._budget)
        return super().getreply()


class _ImplicitTls(_Conversation, smtplib.SMTP_SSL):
    """The same with TLS from the first byte."""

    def __init__(self, config: MailConfig, context: ssl.SSLContext, budget: _Budget) -> None:
        self._budget = budget
        smtplib.SMTP_SSL.__init__(
            self,
            config.host,
            config.server_port,
            _our_name(config),
            timeout=min(CONNECT_SECONDS, budget.seconds()),
            context=context,
        )


class _Budget:
    """What a server may still use up."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._bytes = MAX_REPLIES_BYTES

    def seconds(self) -> float:
        """Left; raises :class:`TimeoutError`."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the mail server takes too long")
        return left

    def end(self) -> None:
        """Nothing is left from now on; for another thread."""
        self._until = 0.0

    def spend(self, count: int) -> None:
        """Take so many bytes; raises :class:`OSError`."""
        self._bytes -= count
        if self._bytes < 0:
            raise OSError("the mail server says too much")


class _Replies:
    """The lines of a server, in place of the buffered file that smtplib makes of its socket."""

    def __init__(self, connection: socket.socket, budget: _Budget) -> None:
        self._connection = connection
        self._budget = budget
        self._unread = bytearray()

    def readline(self, limit: int) -> bytes:
        """A line, or the first ``limit`` bytes of it; less at the end of the connection."""
        while b"\n" not in self._unread and len(self._unread) < limit:
            left = self._budget.seconds()
            self._connection.settimeout(min(left, _LOOK_SECONDS))
            try:
                chunk = self._connection.recv(_CHUNK_BYTES)
            except TimeoutError:
                continue
            finally:
                self._connection.settimeout(left)  # for what is sent next
            self._budget.spend(len(chunk))
            if not chunk:
                break
            self._unread += chunk
        end = min(self._unread.find(b"\n") + 1 or len(self._unread), limit)
        line = bytes(self._unread[:end])
        del self._unread[:end]
        return line

    def close(self) -> None:
        """The socket is not this one's to close."""


def _password(path: Path) -> str:
    text = read_secret(path, MAX_PASSWORD_BYTES).decode("ascii", errors="replace").rstrip("\r\n")
    if not text or not text.isascii() or not text.isprintable():
        raise StoreError(f"{path} holds no password", "one line of printable ASCII")
    return text
