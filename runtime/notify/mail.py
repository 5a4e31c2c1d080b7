"""Sends mail by SMTP over TLS, with the standard library's client in a thread.

That client waits as long as a server keeps writing. It therefore reads through :class:`_Replies`, which ends a
conversation that takes too long or whose replies are too large.
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
"""Maximum size of all replies of a server in one conversation."""
MAX_PASSWORD_BYTES = 1 << 10
CONNECT_SECONDS = 10.0
_CHUNK_BYTES = 4096
_LOOK_SECONDS = 0.5


class MailSender:
    """Sends e-mail to the addresses of one receiver."""

    def __init__(self, config: MailConfig, seconds: float) -> None:
        self._config = config
        self._seconds = seconds

    async def send(self, message: Message) -> str:
        """Send one mail; return which addresses the server refuses. It accepts the others, which may still bounce."""
        budget = _Budget(self._seconds)
        try:
            return await asyncio.to_thread(self._send, message, budget)
        except asyncio.CancelledError:
            budget.end()  # a hanging server must not keep this process from ending
            raise

    def _send(self, message: Message, budget: _Budget) -> str:
        config = self._config
        password = _password(Path(config.password_file)) if config.password_file else ""
        context = receiver_context(config.ca_file)
        mail = message.mail(config.sender, config.to)
        # A server's reply may repeat what was sent, even a password: errors contain only its status codes.
        try:
            with contextlib.closing(_connected(config, context, budget)) as client:
                if config.user:
                    client.login(config.user, password)
                refused = client.send_message(mail, config.sender, list(config.to))
                with contextlib.suppress(smtplib.SMTPException, OSError):
                    client.quit()  # the server has the mail already
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
                "check host, port, tls and ca_file, then try again with `sluice notify test`",
            ) from None
        if not refused:
            return ""
        return f"{config.host} refuses {len(refused)} of {len(config.to)} addresses: {_codes(refused)}"


def _codes(refused: Mapping[str, tuple[int, bytes]]) -> str:
    return ", ".join(str(code) for code in sorted({code for code, _ in refused.values()}))


def _connected(config: MailConfig, context: ssl.SSLContext, budget: _Budget) -> smtplib.SMTP:
    """Connect to the server over TLS; raises ``SMTPException`` or ``OSError``."""
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
    """The name for EHLO: a domain that exists. Looking up the machine's own name may need a name server."""
    return config.sender.rpartition("@")[2]


class _Conversation(smtplib.SMTP):
    """An SMTP conversation with limits on time and size."""

    def __init__(self, config: MailConfig, budget: _Budget) -> None:
        self._budget = budget
        super().__init__(config.host, config.server_port, _our_name(config), min(CONNECT_SECONDS, budget.seconds()))

    def getreply(self) -> tuple[int, bytes]:
        """Read one reply."""
        if self.file is None and self.sock is not None:  # a new connection, or TLS on it
            self.file = _Replies(self.sock, self._budget)
        return super().getreply()


class _ImplicitTls(_Conversation, smtplib.SMTP_SSL):
    """An SMTP conversation with implicit TLS."""

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
    """The time and the bytes that are left for a conversation."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._bytes = MAX_REPLIES_BYTES

    def seconds(self) -> float:
        """The seconds that are left; raises :class:`TimeoutError` when there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the mail server takes too long")
        return left

    def end(self) -> None:
        """Use up the time at once. Called from another thread."""
        self._until = 0.0

    def spend(self, count: int) -> None:
        """Use up ``count`` bytes; raises :class:`OSError` when there are not enough."""
        self._bytes -= count
        if self._bytes < 0:
            raise OSError("the replies of the mail server are too large")


class _Replies:
    """Reads the server's replies; replaces the buffered file that smtplib makes of its socket."""

    def __init__(self, connection: socket.socket, budget: _Budget) -> None:
        self._connection = connection
        self._budget = budget
        self._unread = bytearray()

    def readline(self, limit: int) -> bytes:
        """Read a line, or its first ``limit`` bytes; less at the end of the connection."""
        while b"\n" not in self._unread and len(self._unread) < limit:
            left = self._budget.seconds()
            self._connection.settimeout(min(left, _LOOK_SECONDS))
            try:
                chunk = self._connection.recv(_CHUNK_BYTES)
            except TimeoutError:
                continue
            finally:
                self._connection.settimeout(left)  # for the next send
            self._budget.spend(len(chunk))
            if not chunk:
                break
            self._unread += chunk
        end = min(self._unread.find(b"\n") + 1 or len(self._unread), limit)
        line = bytes(self._unread[:end])
        del self._unread[:end]
        return line

    def close(self) -> None:
        """Do nothing: this object does not own the socket."""


def _password(path: Path) -> str:
    text = read_secret(path, MAX_PASSWORD_BYTES).decode("ascii", errors="replace").rstrip("\r\n")
    if not text or not text.isascii() or not text.isprintable():
        raise StoreError(f"{path} holds no password", "write one line of printable ASCII")
    return text
