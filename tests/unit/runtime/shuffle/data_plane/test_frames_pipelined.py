"""The frames of shuffles that are read while they are written."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.data_plane.errors import (
    ErrorCode,
    FrameRefused,
    Moved,
    ShuffleUnavailable,
)
from sluice.runtime.shuffle.data_plane.frames import (
    HEADER_BYTES,
    MAP_ENTRY,
    MAX_ERROR_TEXT_BYTES,
    MAX_MAPS_PER_BATCH,
    FrameType,
    Header,
    Produced,
    Share,
    error_of,
    pack_error,
    pack_share,
    parse_follow,
    parse_header,
    parse_maps,
    parse_produced,
)

I64 = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)


@given(modulus=st.integers(1, 2**32 - 1), remainder=U32, had=st.sets(I64, max_size=20))
def test_follow_survives(modulus: int, remainder: int, had: set[int]) -> None:
    share = Share(modulus, remainder % modulus)
    payload = pack_share(share, had)
    header = Header(FrameType.FOLLOW, length=len(payload), count=len(had), aux=1)
    found, maps = parse_follow(header, payload)
    assert (found, maps.tolist()) == (share, sorted(had))


@given(entries=st.lists(st.tuples(I64, U32), max_size=20))
def test_maps_survive(entries: list[tuple[int, int]]) -> None:
    payload = np.array(entries, MAP_ENTRY).tobytes()
    assert parse_maps(Header(FrameType.MAPS, length=len(payload), count=len(entries)), payload) == entries


@given(payload=st.binary(max_size=100), count=st.one_of(st.integers(0, 12), U32), what=st.integers(0, 4), aux=U32)
def test_any_bytes_are_understood_or_refused(payload: bytes, count: int, what: int, aux: int) -> None:
    size = len(payload)
    with contextlib.suppress(FrameRefused):
        share, maps = parse_follow(Header(FrameType.FOLLOW, length=size, count=count, aux=aux), payload)
        assert share.remainder < share.modulus
        assert len(maps) == count
    with contextlib.suppress(FrameRefused):
        assert len(parse_maps(Header(FrameType.MAPS, length=size, count=count), payload)) == count
    with contextlib.suppress(FrameRefused):
        said = parse_produced(Header(FrameType.PRODUCE, length=size, count=count, aux=what), payload)
        assert (said.what is Produced.COMPLETE) or not said.maps
        assert (said.what is Produced.ABORTED) or not said.reason
        assert said.share.remainder < said.share.modulus
        assert said.reason.isprintable()
    error = error_of(Header(FrameType.ERROR, length=size, aux=ErrorCode.MOVED), payload)
    if isinstance(error, Moved):
        assert error.to.name
        assert error.to.host
        assert 0 < error.to.port < 1 << 16


@given(
    name=st.text(min_size=1, max_size=255), host=st.text(min_size=1, max_size=255), port=st.integers(1, (1 << 16) - 1)
)
def test_where_a_shuffle_has_moved_survives(name: str, host: str, port: int) -> None:
    to = WorkerAddress(name, host, port)
    frame = pack_error(Moved("it is there", to=to), shuffle=3, request=7)
    header = parse_header(frame, from_client=False)
    error = error_of(header, frame[HEADER_BYTES:])
    assert isinstance(error, Moved)
    assert (error.to, header.shuffle, header.request) == (to, 3, 7)
    assert isinstance(error, ShuffleUnavailable), "a replica may help"


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(("w", "h", 0), id="no port"),
        pytest.param(("w", "h", 1 << 16), id="too large a port"),
        pytest.param(("", "h", 1), id="no name"),
        pytest.param(("w" * 256, "h", 1), id="a name without end"),
        pytest.param(("w", "", 1), id="no host"),
    ],
)
def test_a_place_out_of_bounds_is_refused(place: tuple[str, str, int]) -> None:
    frame = pack_error(Moved("it is there", to=WorkerAddress(*place)))
    assert isinstance(error_of(parse_header(frame, from_client=False), frame[HEADER_BYTES:]), FrameRefused)


@pytest.mark.parametrize(
    ("count", "size"),
    [
        pytest.param(MAX_MAPS_PER_BATCH + 1, (MAX_MAPS_PER_BATCH + 1) * MAP_ENTRY.itemsize, id="too many"),
        pytest.param(2, MAP_ENTRY.itemsize, id="fewer than said"),
    ],
)
def test_a_batch_out_of_bounds_is_refused(count: int, size: int) -> None:
    with pytest.raises(FrameRefused):
        parse_maps(Header(FrameType.MAPS, length=size, count=count), bytes(size))


def test_a_reason_is_bounded() -> None:
    size = MAX_ERROR_TEXT_BYTES + 1
    with pytest.raises(FrameRefused):
        parse_produced(Header(FrameType.PRODUCE, length=size, aux=Produced.ABORTED), bytes(size))
