"""Sends a batch to its receiver, and returns when the receiver has it.

HTTP confirms with the status code. Syslog has no response: each batch uses its own connection. It counts as delivered
when the receiver closes the connection after it has read up to our close_notify (RFC 5425, 4.4). A receiver that
closes with unread data resets the connection instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp

from sluice.core import BodyTooLarge, StoreError, read_body, read_bounded, read_secret, tcp_connector
from sluice.gateway.audit_export import otlp, syslog
from sluice.gateway.audit_export.reader import Message
from sluice.gateway.config import AuditExportConfig
from sluice.gateway.errors import GatewayError
from sluice.pki.tls import EdgeTrust

SYSLOG_PORT = 6514
"""RFC 5425, 4.1."""
CONNECT_SECONDS = 10.0
SEND_SECONDS = 30.0
"""How long sending a batch may take in total."""
MAX_ANSWER_BYTES = 64 << 10
MAX_TOKEN_BYTES = 16 << 10
_CHUNK_BYTES = 64 << 10
_POLL_SECONDS = 0.02


class DeliveryFailed(GatewayError):
    """The receiver has not confirmed a batch. It may have received part of it."""


class Sender(Protocol):
    """Sends messages to one receiver."""

    async def send(self, messages: Sequence[Message]) -> int:
        """Deliver ``messages``. Returns how many the receiver rejected permanently. Raises :class:`SluiceError`."""
        ...


def create_sender(config: AuditExportConfig, *, seconds: float = SEND_SECONDS) -> Sender:
    """The sender for ``config``. Raises :class:`StoreError` if its CA file cannot be used."""
    trust = ReceiverTrust(config)
    host = socket.gethostname()
    if config.kind == "syslog":
        return SyslogSender(config.url, trust, host, seconds)
    return HttpSender(config, trust, host, seconds)


class ReceiverTrust:
    """TLS settings for one receiver: the CAs to trust, and the client certificate to present."""

    def __init__(self, config: AuditExportConfig) -> None:
        self._trust = EdgeTrust(Path(config.ca_file) if config.ca_file else None)
        self._own = (Path(config.certificate_file), Path(config.key_file)) if config.key_file else None

    def context(self) -> ssl.SSLContext:
        """Context for the next connection. Raises :class:`StoreError` if the client certificate cannot be used."""
        context = self._trust.context()
        if self._own is not None:
            certificate, key = self._own
            read_bounded(certificate)
            read_secret(key)
            try:
                context.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:
                raise StoreError(f"{certificate} and {key} are not a certificate and its key: {error}") from error
        return context


class HttpSender:
    """Sends batches by POST, as JSON lines or OpenTelemetry logs."""

    def __init__(self, config: AuditExportConfig, trust: ReceiverTrust, host: str, seconds: float) -> None:
        self._url = config.url
        self._otlp = config.kind == "otlp"
        self._token_file = Path(config.token_file) if config.token_file else None
        self._trust = trust
        self._host = host
        self._timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)

    async def send(self, messages: Sequence[Message]) -> int:
        """Send one request. A 2xx status confirms it."""
        body, kind = self._body(messages)
        headers = {"content-type": kind}
        if self._token_file is not None:
            headers["authorization"] = f"Bearer {_token(self._token_file)}"
        try:
            async with (
                aiohttp.ClientSession(
                    connector=tcp_connector(), timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
                ) as session,
                # A redirect is not a confirmation, and following it would send the token elsewhere.
                session.post(
                    self._url, data=body, headers=headers, ssl=self._trust.context(), allow_redirects=False
                ) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise DeliveryFailed(f"{self._url} answered {answer.status}")
                if not self._otlp:
                    return 0
                return otlp.rejected(await read_body(answer.content, MAX_ANSWER_BYTES))
        except BodyTooLarge as error:
            raise DeliveryFailed(f"{self._url} sent an answer of more than {MAX_ANSWER_BYTES} bytes") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise DeliveryFailed(f"{self._url} did not confirm: {_error_text(error)}") from error

    def _body(self, messages: Sequence[Message]) -> tuple[bytes, str]:
        if self._otlp:
            return otlp.request(messages, self._host), "application/json"
        return b"".join(each.data + b"\n" for each in messages), "application/x-ndjson"


class SyslogSender:
    """Sends each batch over its own TLS connection, which both sides close."""

    def __init__(self, url: str, trust: ReceiverTrust, host: str, seconds: float) -> None:
        parts = urlsplit(url)
        self._name, self._port = parts.hostname or "", parts.port or SYSLOG_PORT
        self._url = url
        self._trust = trust
        self._host = host
        self._seconds = seconds

    async def send(self, messages: Sequence[Message]) -> int:
        """Send the messages, and wait until the receiver has read them."""
        data = syslog.frames(messages, self._host)
        context = self._trust.context()
        try:
            async with asyncio.timeout(self._seconds):
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(self._name, self._port)
                try:
                    await _TlsClient(reader, writer, context, self._name).deliver(data)
                finally:
                    writer.transport.abort()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except TimeoutError as error:
            raise DeliveryFailed(
                f"{self._url} did not read to the end in time", "check that it closes connections after close_notify"
            ) from error
        except (OSError, EOFError) as error:
            raise DeliveryFailed(f"{self._url} did not read to the end: {_error_text(error)}") from error
        return 0


class _TlsClient:
    """TLS over a plain connection with memory BIOs. asyncio's TLS does not tell how a connection ended."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, name: str
    ) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    async def deliver(self, data: bytes) -> None:
        """Send ``data`` and close_notify. Returns when the other side has closed as well."""
        await self._until_done(self._tls.do_handshake)
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view[:_CHUNK_BYTES]) :]
            await self._flush()
        # close_notify marks the end of the data; FIN does so for receivers that wait for it.
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            await self._flush()
        else:
            raise EOFError("the receiver ended the connection")
        self._writer.write_eof()
        if not await self._ended_by_tls():
            await self._all_acknowledged()

    async def _ended_by_tls(self) -> bool:
        """Wait for the other side to close; returns whether by close_notify. Raises for an alert or a reset."""
        while received := await self._reader.read(_CHUNK_BYTES):
            self._incoming.write(received)
            # Detected by reading: OpenSSL's shutdown treats a fatal alert like close_notify.
            try:
                while self._tls.read(_CHUNK_BYTES):
                    pass
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLZeroReturnError:
                return True
            return True
        return False

    async def _all_acknowledged(self) -> None:
        """Wait until the receiver's TCP has acknowledged everything.

        A receiver that only closes TCP may have closed before it received everything. The rest then causes a reset.
        """
        transport = self._writer.transport
        connection = transport.get_extra_info("socket")
        while not transport.is_closing():
            unsent = transport.get_write_buffer_size()
            (unacknowledged,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))
            if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))
            if not unsent and not unacknowledged:
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise EOFError("the receiver closed the connection")

    async def _until_done(self, step: Callable[[], object]) -> None:
        while True:
            try:
                step()
            except ssl.SSLWantReadError:
                await self._flush()
                received = await self._reader.read(_CHUNK_BYTES)
                if not received:
                    raise EOFError("the receiver closed the connection") from None
                self._incoming.write(received)
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # send the alert with the reason
                raise
            else:
                await self._flush()
                return

    async def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()


def _token(path: Path) -> str:
    token = read_secret(path, MAX_TOKEN_BYTES).decode("ascii", errors="replace").strip()
    if not token or not token.isprintable() or " " in token or not token.isascii():
        raise StoreError(f"{path} holds no bearer token", "write the token there as one line of printable ASCII")
    return token


def _error_text(error: BaseException) -> str:
    return str(error)[:300] or type(error).__name__
