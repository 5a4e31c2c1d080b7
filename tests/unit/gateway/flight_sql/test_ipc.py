"""IPC streams are split where Arrow's own reader splits them, and no input causes reads out of bounds."""

from __future__ import annotations

import contextlib
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from sluice.gateway.flight_sql.ipc import DICTIONARY_BATCH, RECORD_BATCH, SCHEMA, encapsulated, split
from sluice.gateway.flight_sql.messages import InvalidMessage
from sluice.gateway.flight_sql.rows import ipc_stream

TABLE = pa.table({"n": list(range(1000)), "s": ["x" * (n % 7) for n in range(1000)]})
STREAM = ipc_stream(TABLE)


def written(table: pa.Table, compression: Literal["lz4", "zstd"] | None = None) -> bytes:
    """``table`` as a stream of several batches."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=300)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("table", [TABLE, TABLE.slice(0, 0), pa.table({})], ids=["rows", "no rows", "no columns"])
def test_a_stream_is_split_into_the_same_messages_as_by_arrow(table: pa.Table) -> None:
    stream = written(table)
    theirs = list(pa.ipc.MessageReader.open_stream(stream))
    ours = list(split(stream))
    kinds = {"schema": SCHEMA, "record batch": RECORD_BATCH}
    assert [(each.kind, each.header, each.body) for each in ours] == [
        (kinds[each.type], each.metadata.to_pybytes(), each.body.to_pybytes() if each.body else b"") for each in theirs
    ]
    assert not any(each.compressed for each in ours)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_record_batches_are_recognized(compression: Literal["lz4", "zstd"]) -> None:
    _, *batches = split(written(TABLE, compression=compression))
    assert batches
    assert all(each.compressed for each in batches)


def test_dictionary_batches_are_recognized() -> None:
    table = pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode()})
    assert DICTIONARY_BATCH in {each.kind for each in split(written(table))}


def test_arrow_reads_an_encapsulated_schema_message() -> None:
    schema = next(split(STREAM))
    assert pa.ipc.read_schema(pa.py_buffer(encapsulated(schema.header))) == TABLE.schema


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(STREAM[:6], id="mark alone"),
        pytest.param(STREAM[:40], id="part of the header"),
        pytest.param(STREAM[:-100], id="part of the body"),
        pytest.param(STREAM[4:], id="without a mark"),
        pytest.param(STREAM[:4] + b"\xff\xff\xff\xff" + STREAM[8:], id="negative length"),
        pytest.param(STREAM[:4] + b"\xff\xff\xff\x7f" + STREAM[8:], id="length of 2 GiB"),
        pytest.param(STREAM[:8] + b"\xff" * 8 + STREAM[16:], id="table outside"),
    ],
)
def test_damaged_streams_are_refused(stream: bytes) -> None:
    with pytest.raises(InvalidMessage):
        list(split(stream))


@settings(max_examples=300)
@given(st.dictionaries(st.integers(0, 700), st.integers(0, 255), max_size=8), st.integers(0, len(STREAM)))
def test_changed_bytes_raise_only_invalid_message_and_never_exceed_the_stream(
    changes: dict[int, int], length: int
) -> None:
    stream = bytearray(STREAM[:length])
    for position, value in changes.items():
        if position < len(stream):
            stream[position] = value
    with contextlib.suppress(InvalidMessage):
        assert sum(len(each.header) + len(each.body) for each in split(bytes(stream))) <= len(stream)
