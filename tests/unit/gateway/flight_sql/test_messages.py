"""The declared messages match those of Spark, and only Flight SQL commands count as commands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from pyarrow import flight
from pyspark.sql.connect.proto import base_pb2, relations_pb2

from sluice.gateway.flight_sql.messages import InvalidMessage, decode, new, packed, text, unpacked
from sluice.gateway.flight_sql.spark import INTERRUPT_OPERATION

SPARKS: dict[str, Any] = {
    "UserContext": base_pb2.UserContext,
    "SQL": relations_pb2.SQL,
    "Relation": relations_pb2.Relation,
    "Plan": base_pb2.Plan,
    "ExecutePlanRequest": base_pb2.ExecutePlanRequest,
    "ArrowBatch": base_pb2.ExecutePlanResponse.ArrowBatch,
    "ExecutePlanResponse": base_pb2.ExecutePlanResponse,
    "InterruptRequest": base_pb2.InterruptRequest,
    "InterruptResponse": base_pb2.InterruptResponse,
}
ENUM, INT32 = 14, 5


@pytest.mark.parametrize("name", SPARKS)
def test_declared_fields_have_the_numbers_and_types_of_the_installed_spark(name: str) -> None:
    theirs = SPARKS[name].DESCRIPTOR.fields_by_name
    for field in new(name).DESCRIPTOR.fields:
        other = theirs[field.name]
        kind = INT32 if other.type == ENUM else other.type
        assert (field.number, field.type, field.is_repeated) == (other.number, kind, other.is_repeated), field.name


def test_the_interrupt_type_constant_is_sparks_interrupt_by_operation_id() -> None:
    assert base_pb2.InterruptRequest.INTERRUPT_TYPE_OPERATION_ID == INTERRUPT_OPERATION


def test_arrows_flight_client_reads_our_encoded_messages() -> None:
    descriptor = new("FlightDescriptor", type=2, cmd=b"command").SerializeToString()
    assert flight.FlightDescriptor.deserialize(descriptor).command == b"command"
    info = new(
        "FlightInfo",
        flight_descriptor=new("FlightDescriptor", type=2, cmd=b"command"),
        endpoint=[new("FlightEndpoint", ticket=new("Ticket", ticket=b"ticket"))],
        total_records=-1,
        total_bytes=-1,
    ).SerializeToString()
    read = flight.FlightInfo.deserialize(info)
    assert (read.descriptor.command, read.endpoints[0].ticket.ticket) == (b"command", b"ticket")
    assert (read.total_records, read.total_bytes, read.endpoints[0].locations) == (-1, -1, [])


def test_a_packed_command_can_be_unpacked() -> None:
    name, command = unpacked(packed("CommandStatementQuery", query=b"SELECT 1"))
    assert (name, command.query) == ("CommandStatementQuery", b"SELECT 1")


def test_an_absent_field_is_distinguished_from_an_empty_one() -> None:
    _, without = unpacked(packed("CommandGetDbSchemas"))
    _, empty = unpacked(packed("CommandGetDbSchemas", catalog=b""))
    assert (without.HasField("catalog"), empty.HasField("catalog")) == (False, True)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xff", id="no protobuf"),
        pytest.param(new("Any", type_url="CommandStatementQuery").SerializeToString(), id="without the prefix"),
        pytest.param(packed("CommandStatementQuery").replace(b"Query", b"Quest"), id="unknown"),
        pytest.param(b"\x0a\x01\xff", id="type that is not UTF-8"),
    ],
)
def test_data_that_is_not_a_known_command_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        unpacked(data)


def test_text_that_is_not_utf8_is_refused() -> None:
    assert text("größer".encode()) == "größer"
    with pytest.raises(InvalidMessage):
        text(b"\xff")


@given(st.binary(max_size=200))
def test_decoding_arbitrary_bytes_raises_only_invalid_message(data: bytes) -> None:
    for name in ("Any", "FlightData", "FlightDescriptor", "Action", "Ticket", "CommandGetTables"):
        try:
            decode(name, data)
        except InvalidMessage:
            continue
