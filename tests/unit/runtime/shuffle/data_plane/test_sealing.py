"""A sealed segment can be opened only in its own place, and missing segments are noticed."""

from __future__ import annotations

import itertools
import os

import pytest

from sluice.runtime.shuffle.data_plane.errors import FrameRefused, SegmentCorrupt, ShuffleUnavailable
from sluice.runtime.shuffle.data_plane.sealing import SEAL_BYTES, MapSealer, SealedBlocks, SealKeys, SegmentOpener

KEYS = SealKeys("ab" * 32, "job-1")
SHUFFLE, MAP = 7, 1 << 33


def test_sealed_segments_are_opened_and_the_last_segment_carries_their_number() -> None:
    sealer, opener = MapSealer(KEYS, SHUFFLE, MAP), SegmentOpener(KEYS, SHUFFLE)
    sealed = [sealer.seal(2, b"a"), sealer.seal(5, b"b" * 1000), sealer.seal(2, b"", last=True)]
    assert sealer.unfinished == [5]
    assert [len(each) for each in sealed] == [SEAL_BYTES + size for size in (1, 1000, 0)]
    assert opener.open(2, MAP, 0, sealed[0]) == (b"a", 0)
    assert opener.open(5, MAP, 1, memoryview(sealed[1])) == (b"b" * 1000, 0)
    assert opener.open(2, MAP, 2, sealed[2]) == (b"", 2)


def test_a_sealed_segment_has_the_stored_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: bytes(range(size)))
    sealed = MapSealer(KEYS, SHUFFLE, MAP).seal(2, b"data", last=True)
    assert sealed.hex() == "410100000000010203040506072304c3e4c4d32bdc51fd94ab762a10629b25db6a"


@pytest.mark.parametrize("bit", range(8 * (SEAL_BYTES + 4)))
def test_a_sealed_segment_with_a_changed_bit_is_refused(bit: int) -> None:
    sealed = bytearray(MapSealer(KEYS, SHUFFLE, MAP).seal(2, b"data"))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SegmentCorrupt, match=r"partition 2 of map \d+ was not sealed like this \(segment 0\)"):
        SegmentOpener(KEYS, SHUFFLE).open(2, MAP, 0, bytes(sealed))


@pytest.mark.parametrize("length", range(SEAL_BYTES + 4))
def test_a_truncated_sealed_segment_is_refused(length: int) -> None:
    sealed = MapSealer(KEYS, SHUFFLE, MAP).seal(2, b"data")
    with pytest.raises(SegmentCorrupt):
        SegmentOpener(KEYS, SHUFFLE).open(2, MAP, 0, sealed[:length])


@pytest.mark.parametrize(
    ("keys", "shuffle", "partition", "map_id", "sequence"),
    [
        pytest.param(SealKeys("ac" * 32, "job-1"), SHUFFLE, 2, MAP, 0, id="secret"),
        pytest.param(SealKeys("ab" * 32, "job-2"), SHUFFLE, 2, MAP, 0, id="job"),
        pytest.param(KEYS, SHUFFLE + 1, 2, MAP, 0, id="shuffle"),
        pytest.param(KEYS, SHUFFLE, 3, MAP, 0, id="partition"),
        pytest.param(KEYS, SHUFFLE, 2, MAP + 1, 0, id="map"),
        pytest.param(KEYS, SHUFFLE, 2, MAP, 1, id="sequence"),
    ],
)
def test_a_sealed_segment_is_refused_with_another_key_or_in_another_place(
    keys: SealKeys, shuffle: int, partition: int, map_id: int, sequence: int
) -> None:
    sealed = MapSealer(KEYS, SHUFFLE, MAP).seal(2, b"data")
    with pytest.raises(SegmentCorrupt):
        SegmentOpener(keys, shuffle).open(partition, map_id, sequence, sealed)


def test_two_writers_of_one_map_do_not_share_a_nonce() -> None:
    first, second = (MapSealer(KEYS, SHUFFLE, MAP).seal(2, bytes(64)) for _ in range(2))
    assert first[5:13] != second[5:13]
    assert first[13:] != second[13:]


def test_sealing_after_the_last_segment_is_refused() -> None:
    sealer = MapSealer(KEYS, SHUFFLE, MAP)
    sealer.seal(2, b"", last=True)
    with pytest.raises(FrameRefused):
        sealer.seal(2, b"more")


def test_the_repr_of_keys_does_not_show_them() -> None:
    assert "ab" * 32 not in repr(KEYS)


def blocks(*, ordered: bool = True) -> SealedBlocks:
    return SealedBlocks({1: {0, 1}, 2: {1, 9}}, (0, 3), ordered=ordered)


WHOLE = [(0, 1, 0, 0), (0, 1, 1, 2), (1, 1, 2, 1), (1, 2, 0, 0), (1, 2, 1, 2)]
"""Partition, map, sequence, and what the segment says of its number."""


def test_complete_segments_are_accepted_in_any_order_within_a_partition() -> None:
    for order in itertools.permutations(WHOLE[2:]):
        found = blocks(ordered=False)
        for each in [*WHOLE[1::-1], *order]:
            found.add(*each)
        found.finish()


@pytest.mark.parametrize("missing", range(len(WHOLE)))
def test_a_missing_segment_is_reported_with_its_partition_and_map(missing: int) -> None:
    found = blocks()
    for each in WHOLE[:missing] + WHOLE[missing + 1 :]:
        found.add(*each)
    with pytest.raises(
        ShuffleUnavailable, match=f"partition {WHOLE[missing][0]} of map {WHOLE[missing][1]} are missing"
    ):
        found.finish()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param((1, 2, 2, 0), "more segments", id="one-more"),
        pytest.param((1, 2, 2, 3), "two last", id="another-last"),
        pytest.param((2, 2, 2, 1), "is empty", id="empty"),
        pytest.param((1, 3, 0, 1), "is empty", id="unknown-map"),
        pytest.param((0, 1, 5, 0), "more segments|out of order", id="partition-that-was-over"),
    ],
)
def test_a_surplus_segment_is_refused(more: tuple[int, int, int, int], why: str) -> None:
    found = blocks()
    for each in WHOLE:
        found.add(*each)
    with pytest.raises(SegmentCorrupt, match=why):
        found.add(*more)


def test_a_segment_out_of_order_is_refused() -> None:
    found = blocks()
    found.add(*WHOLE[1])
    with pytest.raises(SegmentCorrupt, match="out of order"):
        found.add(*WHOLE[0])
