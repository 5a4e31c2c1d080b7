"""The protobuf messages of Arrow Flight and Flight SQL, and those of Spark Connect that run a statement.

They are declared here in a separate descriptor pool (see ADR 12): no Python package contains those of Flight SQL, and
those of PySpark need packages that the gateway does not have. Text is declared as bytes and decoded by :func:`text`,
which refuses invalid UTF-8.

Sources: https://github.com/apache/arrow/tree/main/format (Flight.proto, FlightSql.proto) and
https://github.com/apache/spark/tree/master/sql/connect/common/src/main/protobuf/spark/connect
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sluice.gateway.errors import GatewayError

SQL_PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
"""Prefix of the type URLs of commands and of action bodies."""

_Fields = dict[str, tuple[int, str]]

_MESSAGES: dict[str, _Fields] = {
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    # Arrow Flight
    "FlightDescriptor": {"type": (1, "int32"), "cmd": (2, "bytes"), "path": (3, "repeated bytes")},
    "Ticket": {"ticket": (1, "bytes")},
    "FlightEndpoint": {"ticket": (1, ".Ticket")},
    "FlightInfo": {
        "schema": (1, "bytes"),
        "flight_descriptor": (2, ".FlightDescriptor"),
        "endpoint": (3, "repeated .FlightEndpoint"),
        "total_records": (4, "int64"),
        "total_bytes": (5, "int64"),
    },
    "SchemaResult": {"schema": (1, "bytes")},
    "FlightData": {
        "flight_descriptor": (1, ".FlightDescriptor"),
        "data_header": (2, "bytes"),
        "data_body": (1000, "bytes"),
    },
    "PutResult": {"app_metadata": (1, "bytes")},
    "Action": {"type": (1, "bytes"), "body": (2, "bytes")},
    "Result": {"body": (1, "bytes")},
    # Flight SQL
    "CommandGetSqlInfo": {"info": (1, "repeated uint32")},
    "CommandGetCatalogs": {},
    "CommandGetDbSchemas": {"catalog": (1, "bytes"), "db_schema_filter_pattern": (2, "bytes")},
    "CommandGetTables": {
        "catalog": (1, "bytes"),
        "db_schema_filter_pattern": (2, "bytes"),
        "table_name_filter_pattern": (3, "bytes"),
        "table_types": (4, "repeated bytes"),
        "include_schema": (5, "bool"),
    },
    "CommandGetTableTypes": {},
    "CommandStatementQuery": {"query": (1, "bytes"), "transaction_id": (2, "bytes")},
    "CommandStatementUpdate": {"query": (1, "bytes"), "transaction_id": (2, "bytes")},
    "TicketStatementQuery": {"statement_handle": (1, "bytes")},
    "CommandPreparedStatementQuery": {"prepared_statement_handle": (1, "bytes")},
    "CommandPreparedStatementUpdate": {"prepared_statement_handle": (1, "bytes")},
    "ActionCreatePreparedStatementRequest": {"query": (1, "bytes"), "transaction_id": (2, "bytes")},
    "ActionCreatePreparedStatementResult": {"prepared_statement_handle": (1, "bytes"), "dataset_schema": (2, "bytes")},
    "ActionClosePreparedStatementRequest": {"prepared_statement_handle": (1, "bytes")},
    "DoPutUpdateResult": {"record_count": (1, "int64")},
    # Spark Connect
    "UserContext": {"user_id": (1, "string"), "user_name": (2, "string")},
    "SQL": {"query": (1, "string")},
    "Relation": {"sql": (10, ".SQL")},
    "Plan": {"root": (1, ".Relation")},
    "ExecutePlanRequest": {
        "session_id": (1, "string"),
        "user_context": (2, ".UserContext"),
        "plan": (3, ".Plan"),
        "client_type": (4, "string"),
        "operation_id": (6, "string"),
    },
    "ArrowBatch": {"row_count": (1, "int64"), "data": (2, "bytes")},
    "ExecutePlanResponse": {"arrow_batch": (2, ".ArrowBatch")},
    "InterruptRequest": {
        "session_id": (1, "string"),
        "user_context": (2, ".UserContext"),
        "interrupt_type": (4, "int32"),
        "operation_id": (6, "string"),
    },
    "InterruptResponse": {"interrupted_ids": (2, "repeated string")},
}
_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
}

Message = Any
"""The message classes are created at run time and have no static type."""


class InvalidMessage(GatewayError):
    """The bytes are not a valid message of the expected type."""


class UnknownCommand(InvalidMessage):
    """The command is not supported."""


def _pool() -> DescriptorPool:
    # proto2, because its optional fields distinguish "absent" from "empty", which catalog filters need.
    file = FileDescriptorProto(name="sluice/flight_sql.proto", package="sluice", syntax="proto2")
    for name, fields in _MESSAGES.items():
        descriptor = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label, _, element = kind.rpartition(" ")
            declared = descriptor.field.add(name=field, number=number)
            declared.label = FieldDescriptorProto.LABEL_REPEATED if label else FieldDescriptorProto.LABEL_OPTIONAL
            if element in _TYPES:
                declared.type = _TYPES[element]
            else:
                declared.type = FieldDescriptorProto.TYPE_MESSAGE
                declared.type_name = f".sluice{element}"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _pool()
_CLASSES = {name: GetMessageClass(_POOL.FindMessageTypeByName(f"sluice.{name}")) for name in _MESSAGES}


def new(name: str, **fields: object) -> Message:
    """Create a message of the declared type ``name``."""
    return _CLASSES[name](**fields)


def decode(name: str, data: bytes) -> Message:
    """Decode ``data`` as a message of type ``name``; raises :class:`InvalidMessage`."""
    try:
        return _CLASSES[name].FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"not a {name}") from error


def packed(name: str, **fields: object) -> bytes:
    """A Flight SQL message, wrapped in an ``Any`` and serialized, as clients and servers exchange it."""
    value = new(name, **fields).SerializeToString()
    data: bytes = new("Any", type_url=SQL_PREFIX + name, value=value).SerializeToString()
    return data


def unpacked(data: bytes) -> tuple[str, Message]:
    """The name and the message of a Flight SQL command; raises :class:`InvalidMessage` for other data."""
    outer = decode("Any", data)
    name = str(outer.type_url).removeprefix(SQL_PREFIX)
    if name == outer.type_url:
        raise InvalidMessage("not a command of Flight SQL")
    if name not in _MESSAGES:
        raise UnknownCommand("this command of Flight SQL is not served")
    return name, decode(name, outer.value)


def text(data: bytes) -> str:
    """Decode text from a client; raises :class:`InvalidMessage`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage("text that is not UTF-8") from error
