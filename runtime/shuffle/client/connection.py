"""An asynchronous connection to a shuffle worker for one direction, shared by all requests of that direction."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Iterator
from typing import Literal

import msgspec

from sluice.core import SluiceError, end_tasks
from sluice.pki import Channel, Role, server_policy
from sluice.pki.tls import TlsIdentity
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.data_plane import (
    DATA_ENTRY,
    HEADER_BYTES,
    FrameRefused,
    FrameType,
    Header,
    ShuffleError,
    ShuffleUnavailable,
    error_of,
    pack_hello,
    parse_header,
)

CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 120.0
"""A worker that does not answer for this long counts as dead."""


Answers = asyncio.Queue[tuple[Header, bytes] | ShuffleError]
"""A worker's answers to one request, in the order of arrival."""


class WorkerConnection:
    """A connection to one worker for one direction, shared by all requests of that direction."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: WorkerAddress) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._answers: dict[int, Answers] = {}
        self._granted: dict[int, int] = {}
        self._requests = 0
        self._room = asyncio.Condition()
        self._credit = 0
        self._sent = 0
        self._acknowledged = 0
        self._broken: ShuffleError | None = None
        self._receiving: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, identity: TlsIdentity, address: WorkerAddress, direction: Literal["push", "fetch"], job_id: str = ""
    ) -> WorkerConnection:
        """Connect to a worker. Only a shuffle worker passes ``job_id``, because its certificate names no job.

        Raises:
            ShuffleError: the worker cannot be reached, or does not admit ``identity``.
        """
        policy = server_policy(
            Channel.DATA, identity.spiffe_id.trust_domain, role=Role.SHUFFLE_WORKER, name=address.name
        )
        connection: WorkerConnection | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=identity.client_context(policy), limit=2 << 20
                )
                connection = cls(reader, writer, address)
                writer.write(pack_hello(direction, job_id))
                header, _ = await connection._frame()
            if header.kind is not FrameType.HELLO_OK:
                raise FrameRefused(f"shuffle worker {address.name} answered HELLO with {header.kind.name}")
        except (OSError, EOFError, TimeoutError, SluiceError) as error:
            if connection is not None:
                await connection.close()
            if isinstance(error, ShuffleError):
                raise
            raise ShuffleUnavailable(f"shuffle worker {address.name} cannot be reached: {_reason(error)}") from error
        connection._credit = header.aux
        connection._receiving = asyncio.create_task(connection._receive(), name=f"shuffle-{address.name}")
        return connection

    @property
    def usable(self) -> bool:
        """Whether the connection is not broken yet."""
        return self._broken is None

    async def push(self, header: Header, payload: bytes) -> None:
        """Send a PUSH frame once the worker's credit allows it."""
        async with self._room:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._room.wait_for(
                    lambda: self._broken is not None or self._sent - self._acknowledged + header.length <= self._credit
                )
            self._check()
            self._sent += header.length
        await self.send(header.pack(), payload)

    async def commit(self, shuffle: int, map_id: int, segments: int, size: int) -> None:
        """Make a map readable; raises :class:`ShuffleError` when the worker does not have all of it."""
        with self.request() as (number, queue):
            header = Header(
                FrameType.COMMIT,
                shuffle=shuffle,
                map_id=map_id,
                request=number,
                count=segments,
                extra=size,
            )
            await self.send(header.pack())
            await answer_of(queue, self.address.name)

    async def stream(self, header: Header, payload: bytes) -> AsyncGenerator[tuple[Header, bytes], None]:
        """Send a FETCH and yield its answers, of which END is the last.

        A DATA frame is credited when the caller asks for the next answer. Close the iterator to cancel the request.

        Raises:
            ShuffleError: the worker refused the request, or the connection broke.
        """
        with self.request() as (number, queue):
            request = msgspec.structs.replace(header, request=number, length=len(payload))
            self._granted[number] = header.extra
            await self.send(request.pack(), payload)
            ended = False
            try:
                while not ended:
                    answer, data = await answer_of(queue, self.address.name)
                    ended = answer.kind is FrameType.END
                    yield answer, data
                    if answer.kind is FrameType.DATA:
                        taken = len(data) - answer.count * DATA_ENTRY.itemsize
                        self._granted[number] += max(1, taken)
                        await self.send(Header(FrameType.CREDIT, request=number, extra=taken).pack())
            finally:
                if not ended and self.usable:
                    with contextlib.suppress(ShuffleError):
                        await self.send(Header(FrameType.CANCEL, request=number).pack())

    async def send(self, *parts: bytes) -> None:
        """Write frames, or the parts of one."""
        self._check()
        for part in parts:
            self._writer.write(part)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._writer.drain()
        except OSError as error:  # TimeoutError is one
            raise self._fail(error) from error

    @contextlib.contextmanager
    def request(self) -> Iterator[tuple[int, Answers]]:
        """Begin a request; yields its number and the queue of its answers, and ends it on exit."""
        number, queue = self.begin_request()
        try:
            yield number, queue
        finally:
            self.end_request(number)

    def begin_request(self) -> tuple[int, Answers]:
        """Like :meth:`request`, but the caller ends the request with :meth:`end_request`."""
        self._check()
        self._requests = self._requests % 0xFFFFFFFF + 1
        queue = self._answers[self._requests] = asyncio.Queue()
        return self._requests, queue

    def end_request(self, number: int) -> None:
        """Ignore all further answers to a request."""
        self._answers.pop(number, None)
        self._granted.pop(number, None)

    async def close(self) -> None:
        """Close the connection; frames in flight are lost."""
        if self._receiving is not None:
            await end_tasks(self._receiving)
        self._fail(ConnectionAbortedError("closed"))
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    async def _frame(self) -> tuple[Header, bytes]:
        header = parse_header(await self._reader.readexactly(HEADER_BYTES), from_client=False)
        payload = await self._reader.readexactly(header.length)
        if header.kind is FrameType.ERROR and header.request == 0:
            raise error_of(header, payload)
        return header, payload

    async def _receive(self) -> None:
        try:
            while True:
                header, payload = await self._frame()
                if header.kind is FrameType.PUSH_OK:
                    async with self._room:
                        self._acknowledged = max(self._acknowledged, header.extra)
                        self._credit = header.aux
                        self._room.notify_all()
                    continue
                queue = self._answers.get(header.request)
                if queue is not None:
                    self._charge(header)
                    answer = error_of(header, payload) if header.kind is FrameType.ERROR else (header, payload)
                    queue.put_nowait(answer)
        except (OSError, EOFError, ShuffleError) as error:
            self._fail(error)
            async with self._room:
                self._room.notify_all()

    def _charge(self, header: Header) -> None:
        """Subtract a DATA frame from the credit of its request. A worker may exceed the credit by one frame at most.

        A frame costs at least one byte, because segments may be empty.
        """
        if header.kind is not FrameType.DATA:
            return
        size = header.length - header.count * DATA_ENTRY.itemsize
        if size < 0 or self._granted.get(header.request, 0) <= 0:
            raise FrameRefused(f"shuffle worker {self.address.name} sends more than its credit allows")
        self._granted[header.request] -= max(1, size)

    def _fail(self, error: Exception) -> ShuffleError:
        if self._broken is None:
            self._broken = (
                error
                if isinstance(error, ShuffleError)
                else ShuffleUnavailable(
                    f"the connection with shuffle worker {self.address.name} ended: {_reason(error)}"
                )
            )
            for queue in self._answers.values():
                queue.put_nowait(self._broken)
        return self._broken

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken.fresh_copy()


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return str(error) or type(error).__name__


async def answer_of(queue: Answers, worker: str) -> tuple[Header, bytes]:
    """Return the next answer to a request. If it is an error, raise it."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await queue.get()
    except TimeoutError:
        raise ShuffleUnavailable(f"shuffle worker {worker} has not answered for {ANSWER_SECONDS:.0f} s") from None
    if isinstance(answer, ShuffleError):
        raise answer.fresh_copy()  # when a connection ends, all its requests get the same error object
    return answer
