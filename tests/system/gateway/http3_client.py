"""A client for HTTP/3 that sends exactly the headers it is given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset
from aioquic.tls import SessionTicket

from tests.integration.gateway.conftest import DEADLINE_SECONDS, Gateway

Headers = list[tuple[bytes, bytes]]


@dataclass
class Answer:
    """What was received on one stream; status 0 means a reset stream or a closed connection."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Http3(QuicConnectionProtocol):
    """One connection."""

    http: H3Connection | None = None

    def _answers(self) -> dict[int, tuple[Answer, asyncio.Future[Answer]]]:
        known: dict[int, tuple[Answer, asyncio.Future[Answer]]] = self.__dict__.setdefault("answers", {})
        return known

    def quic_event_received(self, event: QuicEvent) -> None:
        """Collect what comes, by stream."""
        if isinstance(event, ConnectionTerminated):
            for stream in list(self._answers()):
                self._end(stream)
        elif isinstance(event, StreamReset):
            self._end(event.stream_id)
        elif self.http is not None:
            for each in self.http.handle_event(event):
                self._take(each)

    def _take(self, event: H3Event) -> None:
        if not isinstance(event, HeadersReceived | DataReceived) or event.stream_id not in self._answers():
            return
        answer, _ = self._answers()[event.stream_id]
        if isinstance(event, HeadersReceived):
            answer.headers |= {name.decode(): value.decode() for name, value in event.headers}
            answer.status = int(answer.headers[":status"])
        else:
            answer.body += event.data
        if event.stream_ended:
            self._end(event.stream_id)

    def _end(self, stream: int) -> None:
        answer, done = self._answers().pop(stream, (None, None))
        if answer is not None and done is not None and not done.done():
            done.set_result(answer)

    async def exchange(self, headers: Headers, body: bytes = b"") -> Answer:
        """Send a request of just these headers; the answer."""
        if self.http is None:
            self.http = H3Connection(self._quic)
        stream = self._quic.get_next_available_stream_id()
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers()[stream] = (Answer(), done)
        self.http.send_headers(stream, headers, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        return await asyncio.wait_for(done, DEADLINE_SECONDS)

    async def ask(
        self,
        method: str,
        path: str,
        *more: tuple[str, str],
        token: str = "",
        host: str = "localhost",
        body: bytes = b"",
    ) -> Answer:
        """Send a request with the headers that every client sends, and ``more``."""
        headers = [(":method", method), (":scheme", "https"), (":authority", host), (":path", path), *more]
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        return await self.exchange([(name.encode(), value.encode()) for name, value in headers], body)


@contextlib.asynccontextmanager
async def http3(
    gateway: Gateway,
    tickets: list[SessionTicket] | None = None,
    *,
    name: str = "localhost",
    anchors: bytes | None = None,
) -> AsyncIterator[Http3]:
    """Connect to ``gateway``; session tickets from it are appended to ``tickets``.

    The client accepts only certificates for ``name`` issued by ``anchors``; None means the site's authorities.
    """
    if anchors is None:
        # A chain up to its end is what this client verifies: all authorities of the site are its anchors.
        authorities = gateway.authority.certificate_file.parent.parent
        anchors = b"".join(file.read_bytes() for file in sorted(authorities.glob("*/cert.pem")))
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, server_name=name, cadata=anchors)
    async with connect(
        gateway.host,
        gateway.port,
        configuration=configuration,
        create_protocol=Http3,
        session_ticket_handler=None if tickets is None else tickets.append,
    ) as connection:
        assert isinstance(connection, Http3)
        yield connection
