"""Frames survive packing and parsing, and anything out of bounds is refused."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from sluice.runtime.shuffle.data_plane.check_values import SegmentChecks
from sluice.runtime.shuffle.data_plane.errors import (
    BY_CODE,
    ErrorCode,
    FrameRefused,
    MapUnknown,
    SegmentCorrupt,
    ShuffleError,
)
from sluice.runtime.shuffle.data_plane.frames import (
    DATA_ENTRY,
    FROM_CLIENT,
    HEADER_BYTES,
    MAX_ERROR_TEXT_BYTES,
    MAX_PARTITION,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENTS_PER_DATA,
    MAX_SEGMENTS_PER_PUSH,
    SEGMENT_ENTRY,
    FrameType,
    Header,
    error_of,
    pack_error,
    pack_hello,
    parse_data_table,
    parse_header,
    parse_hello,
    parse_map_ids,
    parse_push_table,
)

U32 = st.integers(0, 2**32 - 1)
PLAIN = sorted(set(FrameType) - {FrameType.PUSH, FrameType.DATA})
EMPTY = {FrameType.COMMIT, FrameType.ABORT, FrameType.CREDIT, FrameType.CANCEL}


def test_a_packed_header_has_the_documented_layout() -> None:
    """Offsets and sizes of docs/reference/shuffle-protocol.md, repeated here independently."""
    packed = Header(
        FrameType.PUSH, shuffle=1, partition=2, map_id=-3, request=4, length=5, count=6, aux=7, extra=8, flags=9
    ).pack()
    assert len(packed) == HEADER_BYTES == 48
    assert packed[:4] == b"SLC1"
    assert packed[4:8] == bytes((2, 9, 0, 0))
    assert struct.unpack("<II", packed[8:16]) == (1, 2)
    assert struct.unpack("<q", packed[16:24]) == (-3,)
    assert struct.unpack("<IIII", packed[24:40]) == (4, 5, 6, 7)
    assert struct.unpack("<Q", packed[40:48]) == (8,)
    assert SEGMENT_ENTRY.itemsize == 16
    assert DATA_ENTRY.itemsize == 24


@given(
    kind=st.sampled_from(PLAIN),
    shuffle=U32,
    partition=U32,
    map_id=st.integers(-(2**63), 2**63 - 1),
    request=U32,
    length=st.integers(0, 4096),
    count=U32,
    aux=U32,
    extra=st.integers(0, 2**64 - 1),
    flags=st.integers(0, 255),
)
def test_a_header_survives_packing_and_parsing_and_is_refused_from_the_wrong_side(
    kind: FrameType, length: int, **fields: int
) -> None:
    header = Header(kind, length=0 if kind in EMPTY else length, **fields)
    assert parse_header(header.pack(), from_client=kind in FROM_CLIENT) == header
    with pytest.raises(FrameRefused, match="other way"):
        parse_header(header.pack(), from_client=kind not in FROM_CLIENT)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.booleans(), st.booleans())
def test_arbitrary_bytes_are_parsed_as_a_bounded_header_or_refused(
    data: bytes, from_client: bool, begin_well: bool
) -> None:
    if begin_well:
        data = b"SLC1" + data[4:6] + bytes(2) + data[8:]
    try:
        header = parse_header(data, from_client=from_client)
    except FrameRefused:
        return
    assert header.length <= (8 << 20) + (64 << 10)
    if header.kind in {FrameType.PUSH, FrameType.DATA}:
        assert 0 < header.count <= (MAX_SEGMENTS_PER_PUSH if header.kind is FrameType.PUSH else MAX_SEGMENTS_PER_DATA)


@given(st.lists(st.tuples(st.integers(0, MAX_PARTITION - 1), U32, st.integers(0, 5000), U32), min_size=1, max_size=50))
@example([(0, 0, 0, 0)])
def test_a_segment_table_survives_packing_and_parsing(rows: list[tuple[int, int, int, int]]) -> None:
    table = np.array(rows, SEGMENT_ENTRY).tobytes()
    length = len(table) + sum(row[2] for row in rows)
    header = Header(FrameType.PUSH, length=length, count=len(rows))
    assert parse_push_table(header, table + b"what follows") == rows
    for wrong in (length - 1, length + 1):
        with pytest.raises(FrameRefused):
            parse_push_table(msgspec.structs.replace(header, length=wrong), table)
    with_maps = [(partition, sequence, -7, size, check) for partition, sequence, size, check in rows]
    table = np.array(with_maps, DATA_ENTRY).tobytes()
    header = Header(FrameType.DATA, length=len(table) + sum(row[2] for row in rows), count=len(rows))
    assert parse_data_table(header, table) == with_maps


@pytest.mark.parametrize(
    "row",
    [
        pytest.param((MAX_PARTITION, 0, 1, 0), id="partition"),
        pytest.param((0, 0, MAX_SEGMENT_BYTES + 1, 0), id="length"),
    ],
)
def test_a_segment_table_row_out_of_bounds_is_refused(row: tuple[int, int, int, int]) -> None:
    table = np.array([row], SEGMENT_ENTRY).tobytes()
    with pytest.raises(FrameRefused):
        parse_push_table(Header(FrameType.PUSH, length=len(table) + row[2], count=1), table)


@given(st.binary(max_size=200))
def test_an_arbitrary_hello_payload_is_valid_or_refused(payload: bytes) -> None:
    try:
        hello = parse_hello(payload)
    except FrameRefused:
        return
    assert hello.version == 1
    assert hello.direction in {"push", "fetch"}


def test_a_hello_frame_survives_packing_and_parsing() -> None:
    frame = pack_hello("fetch")
    header = parse_header(frame, from_client=True)
    assert header.kind is FrameType.HELLO
    assert parse_hello(frame[HEADER_BYTES:]).direction == "fetch"


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_map_ids_of_a_fetch_are_sorted_and_duplicates_refused(maps: list[int]) -> None:
    payload = np.array(maps, "<i8").tobytes()
    header = Header(FrameType.FETCH, length=len(payload), count=len(maps), aux=1)
    if len(set(maps)) == len(maps):
        assert parse_map_ids(header, payload).tolist() == sorted(maps)
    else:
        with pytest.raises(FrameRefused):
            parse_map_ids(header, payload)


@given(st.sampled_from(sorted(BY_CODE)), st.text(max_size=3000), U32, st.integers(-(2**63), 2**63 - 1))
def test_an_error_frame_survives_packing_and_cannot_forge_log_lines(
    code: int, text: str, partition: int, map_id: int
) -> None:
    frame = pack_error(BY_CODE[code](text, partition=partition, map_id=map_id), shuffle=3, request=9)
    header = parse_header(frame, from_client=False)
    assert len(frame) <= HEADER_BYTES + MAX_ERROR_TEXT_BYTES
    assert (header.shuffle, header.request) == (3, 9)
    error = error_of(header, frame[HEADER_BYTES:])
    assert type(error) is BY_CODE[code]
    assert (error.code, error.partition, error.map_id) == (code, partition, map_id)
    assert str(error).isprintable()


def test_an_unknown_error_code_becomes_a_generic_shuffle_error() -> None:
    header = Header(FrameType.ERROR, aux=200)
    assert type(error_of(header, b"")) is ShuffleError
    assert {MapUnknown.code, SegmentCorrupt.code} == {ErrorCode.UNKNOWN, ErrorCode.CORRUPT}


PLACE = {"partition": 1, "map_id": 2, "sequence": 3}


def test_a_segment_check_value_is_the_documented_crc32c() -> None:
    """CRC32C bit by bit over key, shuffle, partition, map, sequence, data."""
    data = b"some data"
    key = bytes.fromhex("0123456789abcdef")
    value = 0xFFFFFFFF
    for byte in key + struct.pack("<IIqI", 9, 1, 2, 3) + data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    checks = SegmentChecks(key, 9)
    assert checks.value(1, 2, 3, data) == value ^ 0xFFFFFFFF
    assert checks.value(1, 2, 3, data[:4], memoryview(data)[4:]) == value ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "shuffle", "place", "data"),
    [
        pytest.param(bytes(7) + b"\1", 9, PLACE, b"data", id="key"),
        pytest.param(bytes(8), 8, PLACE, b"data", id="shuffle"),
        pytest.param(bytes(8), 9, PLACE | {"partition": 2}, b"data", id="partition"),
        pytest.param(bytes(8), 9, PLACE | {"map_id": 3}, b"data", id="map"),
        pytest.param(bytes(8), 9, PLACE | {"sequence": 4}, b"data", id="sequence"),
        pytest.param(bytes(8), 9, PLACE, b"datb", id="data"),
    ],
)
def test_a_segment_check_value_depends_on_key_place_and_data(
    key: bytes, shuffle: int, place: dict[str, int], data: bytes
) -> None:
    right = SegmentChecks(bytes(8), 9).value(1, 2, 3, b"data")
    assert SegmentChecks(key, shuffle).value(place["partition"], place["map_id"], place["sequence"], data) != right
