"""Reads the rows of Spark's responses to SHOW, and encodes the gateway's own tables as Arrow.

The driver of a session runs its owner's code, so its responses are untrusted input: they are bounded in size, may
contain only strings and booleans, and are never decompressed.
"""

from __future__ import annotations

from collections.abc import AsyncIterable

import pyarrow as pa

from sluice.gateway.flight_sql.ipc import RECORD_BATCH, SCHEMA, split
from sluice.gateway.flight_sql.messages import InvalidMessage

MAX_ROWS = 10_000
MAX_COLUMNS = 16
MAX_ROW_BYTES = 16 << 20
"""Maximum size of one response that this module reads."""

Row = dict[str, object]


async def read_rows(streams: AsyncIterable[bytes]) -> list[Row]:
    """The rows of a small response; raises :class:`InvalidMessage` when it is invalid or too large."""
    rows: list[Row] = []
    size = 0
    async for stream in streams:
        size += len(stream)
        if size > MAX_ROW_BYTES:
            raise InvalidMessage(f"a response of more than {MAX_ROW_BYTES} bytes")
        _read(stream, rows)
    return rows


def ipc_stream(table: pa.Table) -> bytes:
    """``table`` as a whole IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def schema_message(schema: pa.Schema) -> bytes:
    """``schema`` as an IPC message."""
    return schema.serialize().to_pybytes()


def _read(stream: bytes, rows: list[Row]) -> None:
    """Add the rows of one IPC stream."""
    messages = list(split(stream))
    if any(each.kind not in {SCHEMA, RECORD_BATCH} or each.compressed for each in messages):
        raise InvalidMessage("a response with dictionaries or compression")
    try:
        with pa.ipc.open_stream(stream) as reader:
            if len(reader.schema) > MAX_COLUMNS:
                raise InvalidMessage(f"a response of more than {MAX_COLUMNS} columns")
            if any(field.type not in {pa.string(), pa.bool_()} for field in reader.schema):
                raise InvalidMessage("a response with values other than strings and booleans")
            for batch in reader:
                if len(rows) + batch.num_rows > MAX_ROWS:
                    raise InvalidMessage(f"a response of more than {MAX_ROWS} rows")
                batch.validate(full=True)
                rows += batch.to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidMessage("not an Arrow IPC stream") from error
