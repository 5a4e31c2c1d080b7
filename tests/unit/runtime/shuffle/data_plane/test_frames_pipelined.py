"""The frames of shuffles that are read while they are being written."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.shuffle.data_plane.errors import (
    FrameRefused,
)
from sluice.runtime.shuffle.data_plane.frames import (
    MAP_ENTRY,
    MAX_ERROR_TEXT_BYTES,
    MAX_MAPS_PER_BATCH,
    FrameType,
    Header,
    ProducerStatement,
    Share,
    pack_share,
    parse_follow,
    parse_maps,
    parse_produced,
)

I64 = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)


@given(modulus=st.integers(1, 2**32 - 1), remainder=U32, had=U32)
def test_a_share_survives_packing_and_parsing(modulus: int, remainder: int, had: int) -> None:
    share = Share(modulus, remainder % modulus)
    payload = pack_share(share)
    assert parse_follow(Header(FrameType.FOLLOW, length=len(payload), count=had, aux=1), payload) == share
    for what in (ProducerStatement.COMPLETE, ProducerStatement.FORGET):
        header = Header(FrameType.PRODUCE, length=len(payload), count=had, aux=what)
        assert parse_produced(header, payload) == (what, share, had, "")


@given(entries=st.lists(st.tuples(I64, U32), max_size=20))
def test_a_batch_of_maps_survives_packing_and_parsing(entries: list[tuple[int, int]]) -> None:
    payload = np.array(entries, MAP_ENTRY).tobytes()
    assert parse_maps(Header(FrameType.MAPS, length=len(payload), count=len(entries)), payload) == entries


@given(payload=st.binary(max_size=100), count=st.one_of(st.integers(0, 12), U32), what=st.integers(0, 4), aux=U32)
def test_arbitrary_payloads_are_parsed_within_bounds_or_refused(
    payload: bytes, count: int, what: int, aux: int
) -> None:
    size = len(payload)
    with contextlib.suppress(FrameRefused):
        share = parse_follow(Header(FrameType.FOLLOW, length=size, count=count, aux=aux), payload)
        assert share.remainder < share.modulus
    with contextlib.suppress(FrameRefused):
        assert len(parse_maps(Header(FrameType.MAPS, length=size, count=count), payload)) == count
    with contextlib.suppress(FrameRefused):
        said = parse_produced(Header(FrameType.PRODUCE, length=size, count=count, aux=what), payload)
        assert (said.statement is not ProducerStatement.ABORTED) or not said.maps
        assert (said.statement is ProducerStatement.ABORTED) or not said.reason
        assert said.share.remainder < said.share.modulus
        assert said.reason.isprintable()


@pytest.mark.parametrize(
    ("count", "size"),
    [
        pytest.param(MAX_MAPS_PER_BATCH + 1, (MAX_MAPS_PER_BATCH + 1) * MAP_ENTRY.itemsize, id="too many"),
        pytest.param(2, MAP_ENTRY.itemsize, id="fewer than said"),
    ],
)
def test_a_batch_of_maps_out_of_bounds_is_refused(count: int, size: int) -> None:
    with pytest.raises(FrameRefused):
        parse_maps(Header(FrameType.MAPS, length=size, count=count), bytes(size))


def test_an_abort_reason_that_is_too_long_is_refused() -> None:
    size = MAX_ERROR_TEXT_BYTES + 1
    with pytest.raises(FrameRefused):
        parse_produced(Header(FrameType.PRODUCE, length=size, aux=ProducerStatement.ABORTED), bytes(size))
