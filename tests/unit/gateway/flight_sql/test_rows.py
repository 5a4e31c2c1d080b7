"""Answers of a session's driver are read within bounds or refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pyarrow as pa
import pytest

from sluice.gateway.flight_sql.messages import InvalidMessage
from sluice.gateway.flight_sql.rows import MAX_ROW_BYTES, MAX_ROWS, Row, ipc_stream, read_rows
from tests.unit.gateway.flight_sql.test_ipc import written


async def read(*streams: bytes) -> list[Row]:
    """The rows of these streams."""

    async def answers() -> AsyncGenerator[bytes, None]:
        for each in streams:
            yield each

    return await read_rows(answers())


def many_batches(table: pa.Table, count: int) -> bytes:
    """Return one stream that contains ``table`` ``count`` times."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for _ in range(count):
            writer.write_table(table)
    return sink.getvalue().to_pybytes()


async def test_rows_of_all_streams_are_read() -> None:
    one = ipc_stream(pa.table({"namespace": ["default", None], "isTemporary": [True, False]}))
    assert await read(one, one) == 2 * [
        {"namespace": "default", "isTemporary": True},
        {"namespace": None, "isTemporary": False},
    ]


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(written(pa.table({"s": ["x" * 100] * 100}), compression="zstd"), id="compressed"),
        pytest.param(written(pa.table({"s": pa.array(["a", "a"]).dictionary_encode()})), id="dictionary"),
        pytest.param(ipc_stream(pa.table({"n": [1]})), id="numbers"),
        pytest.param(ipc_stream(pa.table({"n": pa.nulls(10)})), id="nulls, as many as one likes"),
        pytest.param(ipc_stream(pa.table({"s": [["a"]]})), id="lists"),
        pytest.param(ipc_stream(pa.table({"s": ["a"] * (MAX_ROWS + 1)})), id="too many rows"),
        pytest.param(ipc_stream(pa.table({str(n): [True] for n in range(17)})), id="too many columns"),
        pytest.param(many_batches(pa.table({"s": [True] * 9000}), 2), id="too many rows in all"),
        pytest.param(many_batches(pa.table({"s": [True]}), 2000), id="too many messages"),
        pytest.param(b"nothing of the kind", id="no stream"),
        pytest.param(bytes(MAX_ROW_BYTES + 1), id="too long"),
    ],
)
async def test_malformed_or_oversized_answers_are_refused(stream: bytes) -> None:
    with pytest.raises(InvalidMessage):
        await read(stream)


async def test_text_offsets_outside_the_buffer_are_refused() -> None:
    stream = bytearray(ipc_stream(pa.table({"s": ["aaaa", "bbbb"]})))
    offsets = bytes(stream).index(b"\x04\x00\x00\x00\x08\x00\x00\x00")
    stream[offsets + 4 : offsets + 8] = b"\xff\xff\xff\x7f"
    with pytest.raises(InvalidMessage):
        await read(bytes(stream))
