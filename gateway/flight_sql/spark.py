"""Runs SQL in a principal's Spark Connect session and returns the results as Arrow IPC streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator
from typing import Protocol

from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from sluice.core import SluiceError, end_tasks
from sluice.gateway.connect import SERVICE, BoundedChannel
from sluice.gateway.flight_sql.ipc import SCHEMA, encapsulated, split
from sluice.gateway.flight_sql.messages import Message, decode, new
from sluice.gateway.flight_sql.statements import check_length
from sluice.pki.assertions import Assertion

_LOG = logging.getLogger(__name__)

EXECUTE = f"/{SERVICE}/ExecutePlan"
INTERRUPT = f"/{SERVICE}/Interrupt"
INTERRUPT_OPERATION = 3
INTERRUPT_SECONDS = 10.0
INTERRUPT_TRIES = 3
"""A statement that was just sent may not have started yet, so the interrupt is retried."""
INTERRUPT_PAUSE_SECONDS = 0.5
CLOSE_SECONDS = 2.0
MAX_SESSION_IDS = 10_000
MAX_ERROR_BYTES = 2000
"""Maximum length of Spark's message. It is sent in a header, where non-ASCII text takes three times the space."""
SESSION_GONE = "[INVALID_HANDLE.SESSION_"
"""Spark closes a session after an hour without use, and never reopens it."""
ROWS_WITHOUT_EFFECT = ("SHOW", "DESCRIBE", "DESC", "EXPLAIN")
"""Statements that return rows but cannot be a subquery; they have no side effects."""


class Channels(Protocol):
    """The part of :class:`~sluice.gateway.connect.Sessions` that this module uses."""

    async def channel(self, who: Assertion) -> BoundedChannel:
        """A channel to the session of ``who``."""

    def drop(self, who: Assertion) -> None:
        """Report that the session does not answer."""


class SparkSql:
    """Runs statements. All Flight SQL clients of a principal share one session.

    Args:
        sessions: provides channels to sessions.
    """

    def __init__(self, sessions: Channels) -> None:
        self._sessions = sessions
        self._session_ids: dict[str, str] = {}
        self._interrupts: set[asyncio.Task[None]] = set()

    async def results(self, who: Assertion, sql: str) -> AsyncGenerator[bytes, None]:
        """Run ``sql`` and yield IPC streams, at least one, each with the schema.

        Closing the generator early cancels the statement.

        Raises:
            GRPCError: Spark refuses the statement, or there is no session.
        """
        check_length(sql)
        while True:
            session, begun = self._session_id(who.name), False
            try:
                async with contextlib.aclosing(self._executed(who, session, sql)) as streams:
                    async for stream in streams:
                        begun = True
                        yield stream
            except GRPCError as error:
                if begun or SESSION_GONE not in (error.message or "") or self._session_ids.get(who.name) != session:
                    raise
                del self._session_ids[who.name]
                _LOG.info("the Flight SQL session of %s was closed; a new one is opened", who.name)
                continue
            return

    async def schema(self, who: Assertion, sql: str) -> bytes:
        """The schema of the result of ``sql``, as an IPC message; empty when it returns nothing or is invalid.

        A query runs as a subquery with ``LIMIT 0``. Other statements do not parse as a subquery, so they do not run.
        """
        check_length(sql)
        words = sql.split(maxsplit=1)
        if words[0].upper() not in ROWS_WITHOUT_EFFECT:
            query = sql.rstrip().rstrip(";")
            sql = f"SELECT * FROM (\n{query}\n) LIMIT 0"  # noqa: S608  whoever wrote it may run any SQL
        try:
            async with contextlib.aclosing(self.results(who, sql)) as streams:
                async for stream in streams:
                    return next((encapsulated(each.header) for each in split(stream) if each.kind == SCHEMA), b"")
        except GRPCError as error:
            if error.status in {Status.UNAVAILABLE, Status.UNAUTHENTICATED, Status.RESOURCE_EXHAUSTED}:
                raise
        return b""

    async def close(self) -> None:
        """End the background tasks, after a short wait for pending interrupts."""
        if self._interrupts:
            await asyncio.wait(self._interrupts, timeout=CLOSE_SECONDS)
        await end_tasks(*self._interrupts)

    def _session_id(self, principal: str) -> str:
        if principal not in self._session_ids:
            while len(self._session_ids) >= MAX_SESSION_IDS:
                del self._session_ids[next(iter(self._session_ids))]
            self._session_ids[principal] = str(uuid.uuid4())
        return self._session_ids[principal]

    async def _executed(self, who: Assertion, session: str, sql: str) -> AsyncGenerator[bytes, None]:
        operation = str(uuid.uuid4())
        user = new("UserContext", user_id=who.name, user_name=who.name)
        plan = new("Plan", root=new("Relation", sql=new("SQL", query=sql)))
        request = new("ExecutePlanRequest", session_id=session, user_context=user, plan=plan, operation_id=operation)
        channel, ended = None, False
        try:
            channel = await self._sessions.channel(who)
            async with channel.call(EXECUTE, None) as call:
                await call.send_request()
                await call.send_message(request.SerializeToString())
                await call.end()
                while (answer := await call.recv_message()) is not None:
                    if data := decode("ExecutePlanResponse", answer).arrow_batch.data:
                        yield data
                await call.recv_trailing_metadata()
            ended = True
        except GRPCError as error:
            text = (error.message or "").encode()[:MAX_ERROR_BYTES].decode(errors="ignore")
            raise GRPCError(error.status, text) from error
        except (StreamTerminatedError, ProtocolError, OSError, SluiceError) as error:
            _LOG.info("lost the session of %s: %s", who.name, error or type(error).__name__)
            self._sessions.drop(who)
            raise GRPCError(Status.UNAVAILABLE, "your Spark Connect session is not available now") from error
        finally:
            if channel is not None and not ended:
                interrupt = new(
                    "InterruptRequest",
                    session_id=session,
                    user_context=user,
                    interrupt_type=INTERRUPT_OPERATION,
                    operation_id=operation,
                )
                self._interrupt(channel, interrupt)

    def _interrupt(self, channel: BoundedChannel, request: Message) -> None:
        """Interrupt the statement in a background task, because the client has gone."""
        task = asyncio.get_running_loop().create_task(_interrupted(channel, request))
        self._interrupts.add(task)
        task.add_done_callback(self._interrupts.discard)


async def _interrupted(channel: BoundedChannel, request: Message) -> None:
    try:
        async with asyncio.timeout(INTERRUPT_SECONDS):
            for _ in range(INTERRUPT_TRIES):
                async with channel.call(INTERRUPT, None) as call:
                    await call.send_request()
                    await call.send_message(request.SerializeToString())
                    await call.end()
                    answer = await call.recv_message()
                    await call.recv_trailing_metadata()
                if answer is not None and decode("InterruptResponse", answer).interrupted_ids:
                    return
                await asyncio.sleep(INTERRUPT_PAUSE_SECONDS)
    except (GRPCError, StreamTerminatedError, ProtocolError, OSError, SluiceError) as error:
        _LOG.info("cannot interrupt %s: %s", request.operation_id, error or type(error).__name__)
