"""The Flight SQL service with Arrow as its reader and a fake server in place of Spark."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream
from pyspark.sql.connect.proto import base_pb2 as proto

from sluice.core.home import Home
from sluice.gateway.connect.admission import Admission
from sluice.gateway.connect.envoy import FLIGHT_METHODS, FLIGHT_SERVICE, connect_operations
from sluice.gateway.connect.messages import SERVICE
from sluice.gateway.connect.wire import BoundedChannel, RawCodec, RawDetails
from sluice.gateway.credentials.assertion import audience_of
from sluice.gateway.flight_sql.messages import Message, decode, new, packed, unpacked
from sluice.gateway.flight_sql.rows import ipc_stream
from sluice.gateway.flight_sql.service import FlightSqlService
from sluice.gateway.flight_sql.spark import SparkSql
from sluice.gateway.flight_sql.statements import MAX_SQL_BYTES, Statements
from sluice.pki.assertions.keys import AssertionKeys, assertion_keys_file
from sluice.pki.assertions.open_streams import Holders, OpenStreams
from sluice.pki.assertions.tokens import CONNECT_AUDIENCE, HEADER, Assertion, AssertionVerifier
from tests.assertions import AssertingGateway

NUMBERS = pa.table({"n": [1, 2, 3]})
SHOWN = {
    "SHOW CATALOGS": pa.table({"catalog": ["spark_catalog"]}),
    "SHOW SCHEMAS IN `spark_catalog`": pa.table({"namespace": ["default", "shop"]}),
    "SHOW TABLES IN `spark_catalog`.`default`": pa.table(
        {"namespace": ["default"], "tableName": ["temporary"], "isTemporary": [True]}
    ),
    "SHOW VIEWS IN `spark_catalog`.`default`": pa.table(
        {"namespace": ["default"], "viewName": ["temporary"], "isTemporary": [True]}
    ),
    "SHOW TABLES IN `spark_catalog`.`shop`": pa.table(
        {"namespace": ["shop", "shop"], "tableName": ["orders", "recent"], "isTemporary": [False, False]}
    ),
    "SHOW VIEWS IN `spark_catalog`.`shop`": pa.table(
        {"namespace": ["shop"], "viewName": ["recent"], "isTemporary": [False]}
    ),
}


@dataclass
class FakeSpark:
    """A fake Spark server that records statements and their users.

    ``FOREVER`` never ends; unknown statements fail with a syntax error.
    """

    answers: dict[str, list[bytes]] = field(default_factory=dict)
    ran: list[tuple[str, str]] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    operations: dict[str, str] = field(default_factory=dict)
    interrupted: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def __mapping__(self) -> dict[str, Handler]:
        methods = {"ExecutePlan": self.execute, "Interrupt": self.interrupt}
        return {
            f"/{SERVICE}/{name}": Handler(method, Cardinality.STREAM_STREAM, bytes, bytes)
            for name, method in methods.items()
        }

    async def execute(self, stream: Stream[bytes, bytes]) -> None:
        request = proto.ExecutePlanRequest.FromString(await stream.recv_message() or b"")
        sql = request.plan.root.sql.query
        self.sessions.append(request.session_id)
        if request.session_id in self.closed:
            raise GRPCError(Status.INTERNAL, "[INVALID_HANDLE.SESSION_CLOSED] it was closed")
        self.ran.append((request.user_context.user_id, sql))
        self.operations[request.operation_id] = sql
        if sql != "FOREVER" and sql not in self.answers:
            raise GRPCError(Status.INTERNAL, "[PARSE_SYNTAX_ERROR] " + 5000 * "x")
        for data in self.answers.get(sql, [ipc_stream(NUMBERS)]):
            batch = proto.ExecutePlanResponse.ArrowBatch(data=data)
            await stream.send_message(proto.ExecutePlanResponse(arrow_batch=batch).SerializeToString())
        await stream.send_message(proto.ExecutePlanResponse(session_id=request.session_id).SerializeToString())
        if sql == "FOREVER":
            await asyncio.Event().wait()

    async def interrupt(self, stream: Stream[bytes, bytes]) -> None:
        request = proto.InterruptRequest.FromString(await stream.recv_message() or b"")
        assert request.interrupt_type == proto.InterruptRequest.INTERRUPT_TYPE_OPERATION_ID
        await stream.send_message(
            proto.InterruptResponse(interrupted_ids=[request.operation_id]).SerializeToString(),
        )
        self.interrupted.put_nowait(f"{request.user_context.user_id}: {self.operations[request.operation_id]}")


@dataclass
class OneSession:
    """Fakes the sessions: the calls of all users go to one server."""

    to: BoundedChannel
    dropped: list[str] = field(default_factory=list)

    async def channel(self, who: Assertion) -> BoundedChannel:
        return self.to

    def drop(self, who: Assertion) -> None:
        self.dropped.append(who.name)


@dataclass
class Running:
    """The running service and a client for it."""

    spark: FakeSpark
    channel: Channel
    signer: AssertingGateway
    now: list[float]

    async def call(self, method: str, *messages: Message | bytes, as_: str = "ada") -> list[bytes]:
        """The answers of one call."""
        path = f"/{FLIGHT_SERVICE}/{method}"
        return await self.asserted(path, self.signer.assertion("POST", path, as_), *messages)

    async def asserted(self, path: str, assertion: str, *messages: Message | bytes) -> list[bytes]:
        """The answers of a call with this assertion."""
        metadata = {HEADER: assertion} if assertion else {}
        request = self.channel.request(path, Cardinality.STREAM_STREAM, bytes, bytes, metadata=metadata, timeout=60)
        async with request as stream:
            await stream.send_request()
            for message in messages:
                await stream.send_message(message if isinstance(message, bytes) else message.SerializeToString())
            await stream.end()
            return [each async for each in stream]

    async def ticket(self, command: bytes, as_: str = "ada") -> Message:
        """Return the ticket that ``GetFlightInfo`` gives for a command."""
        (answer,) = await self.call("GetFlightInfo", descriptor(command), as_=as_)
        (endpoint,) = decode("FlightInfo", answer).endpoint
        return endpoint.ticket

    async def rows(self, command: bytes) -> list[dict[str, Any]]:
        """Return the rows of a query or another command."""
        return read(await self.call("DoGet", await self.ticket(command)))

    async def refused(self, method: str, *messages: Message | bytes, as_: str = "ada") -> Status:
        """The status with which a call is refused."""
        with pytest.raises(GRPCError) as caught:
            await self.call(method, *messages, as_=as_)
        return caught.value.status


def descriptor(command: bytes) -> Message:
    return new("FlightDescriptor", type=2, cmd=command)


def query(sql: str) -> bytes:
    return packed("CommandStatementQuery", query=sql.encode())


def put(command: bytes, *rest: Message) -> list[Message]:
    return [new("FlightData", flight_descriptor=descriptor(command)), *rest]


def read(answers: list[bytes]) -> list[dict[str, Any]]:
    """Return the rows in a stream of ``FlightData``."""
    stream = b""
    for answer in answers:
        data = decode("FlightData", answer)
        stream += b"\xff\xff\xff\xff" + len(data.data_header).to_bytes(4, "little") + data.data_header + data.data_body
    with pa.ipc.open_stream(stream + b"\xff\xff\xff\xff\0\0\0\0") as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    home = Home.at(tmp_path / "home")
    home.create()
    signer, spark, now = AssertingGateway(home), FakeSpark(), [0.0]
    spark.answers = {sql: [ipc_stream(table)] for sql, table in SHOWN.items()}
    spark.answers["SELECT n"] = [ipc_stream(NUMBERS), ipc_stream(NUMBERS)]

    async def nobody(holders: Holders) -> Holders:
        return holders

    async with contextlib.AsyncExitStack() as stack:
        serve = partial(serving, stack)
        await serve(spark, tmp_path / "spark.sock")
        upstream = BoundedChannel(
            path=str(tmp_path / "spark.sock"), codec=RawCodec(), status_details_codec=RawDetails()
        )
        stack.callback(upstream.close)
        verifier = AssertionVerifier(AssertionKeys(assertion_keys_file(home)).keys, {CONNECT_AUDIENCE})
        sql = SparkSql(OneSession(upstream))
        stack.push_async_callback(sql.close)
        statements = Statements(lambda: now[0])
        service = FlightSqlService(Admission(verifier, OpenStreams(nobody)), sql, statements)
        await serve(service, tmp_path / "flight.sock")
        channel = Channel(path=str(tmp_path / "flight.sock"), codec=RawCodec())
        stack.callback(channel.close)
        yield Running(spark, channel, signer, now)


async def serving(stack: contextlib.AsyncExitStack, service: Any, path: Path) -> None:
    """Serve on a unix socket for as long as ``stack`` is open."""
    server = Server([service], codec=RawCodec(), status_details_codec=RawDetails())
    await server.start(path=str(path))
    stack.push_async_callback(server.wait_closed)
    stack.callback(server.close)


async def test_a_query_runs_as_its_principal_only_when_it_is_fetched(running: Running) -> None:
    ticket = await running.ticket(query("SELECT n"))
    assert running.spark.ran == []
    answers = await running.call("DoGet", ticket)
    assert read(answers) == 2 * NUMBERS.to_pylist()
    assert len(answers) == 3, "the schema once, and two batches"
    assert running.spark.ran == [("ada", "SELECT n")]


async def test_a_ticket_of_another_principal_runs_nothing(running: Running) -> None:
    ticket = await running.ticket(query("SELECT n"))
    assert await running.refused("DoGet", ticket, as_="bob") is Status.NOT_FOUND
    assert running.spark.ran == []
    assert read(await running.call("DoGet", ticket))
    assert await running.refused("DoGet", ticket) is Status.NOT_FOUND
    assert len(running.spark.ran) == 1


async def test_an_expired_ticket_runs_nothing(running: Running) -> None:
    ticket = await running.ticket(query("SELECT n"))
    running.now[0] += 301
    assert await running.refused("DoGet", ticket) is Status.NOT_FOUND
    assert running.spark.ran == []


@pytest.mark.parametrize("forged", ["of another method", "of Spark Connect", "used", "none"])
async def test_an_assertion_that_is_missing_used_or_for_another_call_is_refused(running: Running, forged: str) -> None:
    path, other = f"/{FLIGHT_SERVICE}/GetFlightInfo", f"/{FLIGHT_SERVICE}/DoGet"
    assertion = running.signer.assertion("POST", path)
    if forged == "used":
        await running.asserted(path, assertion, descriptor(query("SELECT n")))
    elif forged == "none":
        assertion = ""
    else:
        assertion = running.signer.assertion("POST", other if "method" in forged else f"/{SERVICE}/ExecutePlan")
    with pytest.raises(GRPCError) as caught:
        await running.asserted(path, assertion, descriptor(query("SELECT n")))
    assert caught.value.status is Status.UNAUTHENTICATED


async def test_each_principal_keeps_its_own_spark_session(running: Running) -> None:
    for name in ("ada", "bob", "ada"):
        await running.call("DoGet", await running.ticket(query("SELECT n"), name), as_=name)
    first, second, third = running.spark.sessions
    assert first == third != second


async def test_a_session_that_spark_closed_is_replaced(running: Running) -> None:
    assert await running.rows(query("SELECT n"))
    running.spark.closed = set(running.spark.sessions)
    assert await running.rows(query("SELECT n"))
    assert len(set(running.spark.sessions)) == 2
    assert len(running.spark.ran) == 2


async def test_sparks_error_message_is_forwarded_and_bounded_in_length(running: Running) -> None:
    ticket = await running.ticket(query("SELEC"))
    with pytest.raises(GRPCError, match="PARSE_SYNTAX_ERROR") as caught:
        await running.call("DoGet", ticket)
    assert len(caught.value.message or "") <= 2000


async def test_a_running_statement_is_interrupted_when_its_client_disconnects(running: Running) -> None:
    path = f"/{FLIGHT_SERVICE}/DoGet"
    metadata = {HEADER: running.signer.assertion("POST", path)}
    ticket = await running.ticket(query("FOREVER"))
    request = running.channel.request(path, Cardinality.STREAM_STREAM, bytes, bytes, metadata=metadata, timeout=60)
    async with request as stream:
        await stream.send_request()
        await stream.send_message(ticket.SerializeToString(), end=True)
        assert await stream.recv_message()
        await stream.cancel()
    async with asyncio.timeout(60):
        assert await running.spark.interrupted.get() == "ada: FOREVER"


async def test_a_statement_that_ends_is_not_interrupted(running: Running) -> None:
    assert await running.rows(query("SELECT n"))
    assert running.spark.interrupted.empty()


async def test_an_update_runs_once_and_reports_an_unknown_row_count(running: Running) -> None:
    command = packed("CommandStatementUpdate", query=b"SELECT n")
    (answer,) = await running.call("DoPut", *put(command))
    result = decode("DoPutUpdateResult", decode("PutResult", answer).app_metadata)
    assert (result.record_count, running.spark.ran) == (-1, [("ada", "SELECT n")])


async def test_parameters_are_refused_before_anything_runs(running: Running) -> None:
    command = packed("CommandStatementUpdate", query=b"SELECT n")
    rows = new("FlightData", data_header=b"header", data_body=b"rows")
    assert await running.refused("DoPut", *put(command, rows)) is Status.INVALID_ARGUMENT
    assert running.spark.ran == []


async def test_a_prepared_statement_reports_its_schema_and_runs_repeatedly(running: Running) -> None:
    running.spark.answers["SELECT * FROM (\nSELECT n\n) LIMIT 0"] = [ipc_stream(NUMBERS.slice(0, 0))]
    handle, schema = await prepared(running, "SELECT n;")
    assert schema == NUMBERS.schema
    running.spark.answers["SELECT n;"] = running.spark.answers["SELECT n"]
    for _ in range(2):
        assert await running.rows(packed("CommandPreparedStatementQuery", prepared_statement_handle=handle))
    (answer,) = await running.call(
        "DoPut", *put(packed("CommandPreparedStatementUpdate", prepared_statement_handle=handle))
    )
    assert answer
    close = packed("ActionClosePreparedStatementRequest", prepared_statement_handle=handle)
    assert await running.call("DoAction", new("Action", type=b"ClosePreparedStatement", body=close)) == []
    command = descriptor(packed("CommandPreparedStatementQuery", prepared_statement_handle=handle))
    assert await running.refused("GetFlightInfo", command) is Status.NOT_FOUND


async def test_preparing_an_update_does_not_run_it(running: Running) -> None:
    _, schema = await prepared(running, "DROP TABLE orders")
    assert schema is None
    assert [sql for _, sql in running.spark.ran] == ["SELECT * FROM (\nDROP TABLE orders\n) LIMIT 0"]


async def prepared(running: Running, sql: str) -> tuple[bytes, pa.Schema | None]:
    """Create a prepared statement; return its handle and the schema of its rows."""
    body = packed("ActionCreatePreparedStatementRequest", query=sql.encode())
    (answer,) = await running.call("DoAction", new("Action", type=b"CreatePreparedStatement", body=body))
    name, result = unpacked(decode("Result", answer).body)
    assert name == "ActionCreatePreparedStatementResult"
    schema = pa.ipc.read_schema(pa.py_buffer(result.dataset_schema)) if result.dataset_schema else None
    return result.prepared_statement_handle, schema


async def test_catalogs_schemas_and_tables_are_listed_with_filters(running: Running) -> None:
    assert await running.rows(packed("CommandGetCatalogs")) == [{"catalog_name": "spark_catalog"}]
    schemas = await running.rows(packed("CommandGetDbSchemas", db_schema_filter_pattern=b"s%"))
    assert schemas == [{"catalog_name": "spark_catalog", "db_schema_name": "shop"}]
    assert await running.rows(packed("CommandGetDbSchemas", catalog=b"other")) == []
    tables = await running.rows(packed("CommandGetTables"))
    assert [(each["table_name"], each["table_type"]) for each in tables] == [("orders", "TABLE"), ("recent", "VIEW")]
    views = await running.rows(packed("CommandGetTables", table_types=[b"VIEW"], table_name_filter_pattern=b"r_cent"))
    assert [each["table_name"] for each in views] == ["recent"]
    kinds = await running.rows(packed("CommandGetTableTypes"))
    assert [each["table_type"] for each in kinds] == ["TABLE", "VIEW"]
    assert {who for who, _ in running.spark.ran} == {"ada"}


@pytest.mark.parametrize(
    ("method", "message", "status"),
    [
        pytest.param("GetFlightInfo", descriptor(query("x" * (MAX_SQL_BYTES + 1))), "INVALID_ARGUMENT", id="long"),
        pytest.param("GetFlightInfo", bytes(MAX_SQL_BYTES * 2), "RESOURCE_EXHAUSTED", id="longer"),
        pytest.param("GetFlightInfo", descriptor(query(" ")), "INVALID_ARGUMENT", id="empty"),
        pytest.param("GetFlightInfo", descriptor(b"\xff"), "INVALID_ARGUMENT", id="no command"),
        pytest.param("GetFlightInfo", b"", "INVALID_ARGUMENT", id="nothing"),
        pytest.param(
            "GetFlightInfo",
            descriptor(packed("CommandStatementQuery", query=b"SELECT 1", transaction_id=b"t")),
            "UNIMPLEMENTED",
            id="in a transaction",
        ),
        pytest.param(
            "GetFlightInfo",
            descriptor(packed("CommandStatementQuery", query=b"\xff")),
            "INVALID_ARGUMENT",
            id="not UTF-8",
        ),
        pytest.param("GetFlightInfo", descriptor(packed("ExecutePlanRequest")), "UNIMPLEMENTED", id="not a query"),
        pytest.param("DoGet", new("Ticket", ticket=query("SELECT n")), "UNIMPLEMENTED", id="no ticket"),
        pytest.param(
            "DoGet",
            new("Ticket", ticket=packed("TicketStatementQuery", statement_handle=b"guess")),
            "NOT_FOUND",
            id="guessed ticket",
        ),
        pytest.param(
            "GetFlightInfo",
            descriptor(packed("CommandStatementQuery").replace(b"CommandStatementQuery", b"CommandGetPrimaryKeys")),
            "UNIMPLEMENTED",
            id="not served",
        ),
        pytest.param("DoPut", new("FlightData", data_header=b"x"), "INVALID_ARGUMENT", id="no update"),
        pytest.param("DoAction", new("Action", type=b"BeginTransaction"), "UNIMPLEMENTED", id="action"),
        pytest.param("DoAction", new("Action", type=b"CreatePreparedStatement"), "INVALID_ARGUMENT", id="no body"),
    ],
)
async def test_unsupported_or_malformed_requests_are_refused_and_run_nothing(
    running: Running, method: str, message: Message | bytes, status: str
) -> None:
    assert await running.refused(method, message) is Status[status]
    assert running.spark.ran == []


def test_flight_sql_routes_exist_only_when_flight_sql_is_enabled() -> None:
    flight = {route.path for route in connect_operations(flight_sql=True)} - {
        route.path for route in connect_operations()
    }
    assert flight == {f"/{FLIGHT_SERVICE}/{method}" for method in FLIGHT_METHODS}
    assert {audience_of(path) for path in flight} == {CONNECT_AUDIENCE}
