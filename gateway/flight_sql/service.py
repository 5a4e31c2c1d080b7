"""The Flight SQL service: each call runs in the session of the principal that sends it.

``GetFlightInfo`` only issues a ticket; ``DoGet`` runs the statement and streams its result. When the client closes the
stream, Spark cancels the statement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from sluice.gateway.connect import FLIGHT_METHODS, FLIGHT_SERVICE, Admission, receive
from sluice.gateway.flight_sql.ipc import SCHEMA, split
from sluice.gateway.flight_sql.messages import (
    InvalidMessage,
    Message,
    UnknownCommand,
    decode,
    new,
    packed,
    text,
    unpacked,
)
from sluice.gateway.flight_sql.metadata import SCHEMAS, answer, schema_of
from sluice.gateway.flight_sql.rows import ipc_stream, schema_message
from sluice.gateway.flight_sql.spark import SparkSql
from sluice.gateway.flight_sql.statements import MAX_SQL_BYTES, StatementRefused, Statements
from sluice.pki.assertions import Assertion

_LOG = logging.getLogger(__name__)

MAX_REQUEST_BYTES = MAX_SQL_BYTES + (64 << 10)
"""Largest message of a client."""
MAX_REQUEST_MESSAGES = 16
"""Messages in one ``DoPut``; clients send a descriptor, an empty schema and an empty batch."""
REQUEST_SECONDS = 30.0
"""Timeout for receiving a request."""
METADATA_SECONDS = 300.0
"""Timeout of everything except statements themselves; includes the start of a session."""
UNKNOWN = -1

_Call = Stream[bytes, bytes]


class FlightSqlService:
    """Serves the methods of Arrow Flight that Flight SQL needs.

    Args:
        admission: authenticates callers.
        spark: runs statements.
        statements: the open tickets and prepared statements.
    """

    def __init__(self, admission: Admission, spark: SparkSql, statements: Statements) -> None:
        self._admission = admission
        self._spark = spark
        self._statements = statements

    def __mapping__(self) -> Mapping[str, Handler]:
        """The handler of each path, as grpclib requires it."""
        methods: dict[str, Callable[[_Call, Assertion], Awaitable[None]]] = {
            "GetFlightInfo": self._get_flight_info,
            "GetSchema": self._get_schema,
            "DoGet": self._do_get,
            "DoPut": self._do_put,
            "DoAction": self._do_action,
        }
        return {
            (path := f"/{FLIGHT_SERVICE}/{name}"): Handler(
                partial(self._serve, path, methods[name]), Cardinality.STREAM_STREAM, bytes, bytes
            )
            for name in FLIGHT_METHODS
        }

    async def _serve(self, path: str, method: Callable[[_Call, Assertion], Awaitable[None]], stream: _Call) -> None:
        with self._admission.admitted(path, stream) as who:
            try:
                await method(stream, who)
            except UnknownCommand as error:
                raise GRPCError(Status.UNIMPLEMENTED, str(error)) from error
            except InvalidMessage as error:
                raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from error
            except StatementRefused as error:
                raise GRPCError(error.status, str(error)) from error
            except TimeoutError as error:
                raise GRPCError(Status.DEADLINE_EXCEEDED, "this took too long") from error

    async def _get_flight_info(self, stream: _Call, who: Assertion) -> None:
        descriptor = await _request(stream, "FlightDescriptor")
        name, command = unpacked(descriptor.cmd)
        schema = b""
        match name:
            case "CommandStatementQuery":
                handle = self._statements.ticket(who.name, _sql(command))
                ticket = packed("TicketStatementQuery", statement_handle=handle)
            case "CommandPreparedStatementQuery":
                sql, schema = self._statements.prepared(who.name, command.prepared_statement_handle)
                ticket = packed("TicketStatementQuery", statement_handle=self._statements.ticket(who.name, sql))
            case _ if name in SCHEMAS:
                # The command is its own ticket: a caller only ever gets metadata of its own session.
                ticket, schema = descriptor.cmd, schema_message(schema_of(name, command))
            case _:
                raise _not_served(name)
        info = new(
            "FlightInfo",
            schema=schema,
            flight_descriptor=descriptor,
            endpoint=[new("FlightEndpoint", ticket=new("Ticket", ticket=ticket))],
            total_records=UNKNOWN,
            total_bytes=UNKNOWN,
        )
        await stream.send_message(info.SerializeToString())

    async def _get_schema(self, stream: _Call, who: Assertion) -> None:
        name, command = unpacked((await _request(stream, "FlightDescriptor")).cmd)
        match name:
            case "CommandStatementQuery":
                async with asyncio.timeout(METADATA_SECONDS):
                    schema = await self._spark.schema(who, _sql(command))
            case "CommandPreparedStatementQuery":
                _, schema = self._statements.prepared(who.name, command.prepared_statement_handle)
            case _ if name in SCHEMAS:
                schema = schema_message(schema_of(name, command))
            case _:
                raise _not_served(name)
        await stream.send_message(new("SchemaResult", schema=schema).SerializeToString())

    async def _do_get(self, stream: _Call, who: Assertion) -> None:
        name, command = unpacked((await _request(stream, "Ticket")).ticket)
        if name == "TicketStatementQuery":
            sql = self._statements.redeem(who.name, command.statement_handle)
            _LOG.info("%s runs a statement of %d characters, request %s", who.name, len(sql), who.request_id)
            await _send_results(stream, self._spark.results(who, sql))
        elif name in SCHEMAS:
            async with asyncio.timeout(METADATA_SECONDS):
                table = await answer(self._spark, who, name, command)
            await _send_results(stream, _once(ipc_stream(table)))
        else:
            raise _not_served(name)

    async def _do_put(self, stream: _Call, who: Assertion) -> None:
        name, command = unpacked(await _put(stream))
        match name:
            case "CommandStatementUpdate":
                sql = _sql(command)
            case "CommandPreparedStatementUpdate":
                sql, _ = self._statements.prepared(who.name, command.prepared_statement_handle)
            case _:
                raise _not_served(name)
        _LOG.info("%s runs an update of %d characters, request %s", who.name, len(sql), who.request_id)
        async with contextlib.aclosing(self._spark.results(who, sql)) as streams:
            async for _ in streams:
                pass
        done = new("DoPutUpdateResult", record_count=UNKNOWN).SerializeToString()  # Spark does not count
        await stream.send_message(new("PutResult", app_metadata=done).SerializeToString())

    async def _do_action(self, stream: _Call, who: Assertion) -> None:
        action = await _request(stream, "Action")
        match text(action.type):
            case "CreatePreparedStatement":
                sql = _sql(_unpacked_as("ActionCreatePreparedStatementRequest", action.body))
                async with asyncio.timeout(METADATA_SECONDS):
                    schema = await self._spark.schema(who, sql)
                handle = self._statements.prepare(who.name, sql, schema)
                result = packed(
                    "ActionCreatePreparedStatementResult", prepared_statement_handle=handle, dataset_schema=schema
                )
                await stream.send_message(new("Result", body=result).SerializeToString())
            case "ClosePreparedStatement":
                closed = _unpacked_as("ActionClosePreparedStatementRequest", action.body)
                self._statements.close(who.name, closed.prepared_statement_handle)
                await stream.send_initial_metadata()
            case _:
                raise GRPCError(Status.UNIMPLEMENTED, "this action is not served")


async def _request(stream: _Call, name: str) -> Message:
    """Receive the single message of a request."""
    async with asyncio.timeout(REQUEST_SECONDS):
        return decode(name, await _received(stream) or b"")


async def _put(stream: _Call) -> bytes:
    """The command of a complete ``DoPut``. Rows would be parameters, which are refused."""
    command = None
    async with asyncio.timeout(REQUEST_SECONDS):
        for _ in range(MAX_REQUEST_MESSAGES):
            message = await _received(stream)
            if message is None:
                return command or b""
            data = decode("FlightData", message)
            if command is None:
                command = bytes(data.flight_descriptor.cmd)
            if data.data_body:
                raise InvalidMessage("parameters are not supported: write the values into the statement")
    raise InvalidMessage(f"more than {MAX_REQUEST_MESSAGES} messages")


async def _received(stream: _Call) -> bytes | None:
    raw: Any = stream._stream  # noqa: SLF001  grpclib itself does not limit the size of messages
    return await receive(raw, MAX_REQUEST_BYTES)


async def _send_results(stream: _Call, streams: AsyncGenerator[bytes, None]) -> None:
    """Send IPC streams as one Flight stream, which contains the schema once."""
    begun = False
    async with contextlib.aclosing(streams) as results:
        async for result in results:
            for message in split(result):
                if message.kind == SCHEMA and begun:
                    continue
                begun = True
                data = new("FlightData", data_header=message.header, data_body=message.body)
                await stream.send_message(data.SerializeToString())


async def _once(result: bytes) -> AsyncGenerator[bytes, None]:
    yield result


def _unpacked_as(name: str, data: bytes) -> Message:
    found, message = unpacked(data)
    if found != name:
        raise InvalidMessage(f"not a {name}")
    return message


def _sql(command: Message) -> str:
    if command.transaction_id:
        raise StatementRefused(Status.UNIMPLEMENTED, "there are no transactions")
    return text(command.query)


def _not_served(name: str) -> StatementRefused:
    return StatementRefused(Status.UNIMPLEMENTED, f"{name} is not served")
