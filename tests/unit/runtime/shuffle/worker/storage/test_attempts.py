"""The record of which segments of a map arrived: in any order, each once, in little memory."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.shuffle.data_plane.errors import FrameRefused
from sluice.runtime.shuffle.worker.storage.attempts import (
    PAGE_BYTES,
    PAGE_SEQUENCES,
    SEQUENCE_SLACK,
    MapAttempt,
)

FRAMES = st.lists(
    st.lists(st.integers(0, 3 * PAGE_SEQUENCES), min_size=1, max_size=8)
    | st.tuples(st.integers(0, 2000), st.integers(1, 2000)).map(lambda each: list(range(each[0], sum(each)))),
    max_size=12,
)


@given(FRAMES)
def test_each_segment_number_is_taken_once(frames: list[list[int]]) -> None:
    attempt, seen = MapAttempt(), set[int]()
    for frame in frames:
        if len(set(frame)) < len(frame) or seen.intersection(frame):
            with pytest.raises(FrameRefused, match="second time"):
                attempt.take(frame, 10, 1)
            return
        attempt.take(frame, 10, 1)
        seen.update(frame)
    count = len(seen)
    assert attempt.complete(count, 10 * len(frames)) is (seen == set(range(count)))
    assert not attempt.complete(count + 1, 10 * len(frames))


@given(st.permutations(range(40)), st.integers(1, 7))
def test_segments_in_any_order_complete_the_map_and_leave_no_memory_in_use(order: list[int], size: int) -> None:
    attempt = MapAttempt()
    for start in range(0, len(order), size):
        assert not attempt.complete(40, 40)
        attempt.take(order[start : start + size], len(order[start : start + size]), 1)
    assert attempt.complete(40, 40)
    assert attempt.early_bytes == 0


def test_segments_in_order_take_no_memory() -> None:
    attempt = MapAttempt()
    for start in range(0, 1_000_000, 4096):
        attempt.take(list(range(start, start + 4096)), 1, 1)
    assert attempt.early_bytes == 0


def test_a_segment_number_far_ahead_takes_one_page_of_memory() -> None:
    attempt = MapAttempt()
    attempt.take([SEQUENCE_SLACK], 1, 1)
    assert attempt.early_bytes == PAGE_BYTES
    assert sum(map(sys.getsizeof, attempt.early.values())) < PAGE_BYTES
    with pytest.raises(FrameRefused, match="after 1 others"):
        attempt.take([2 * SEQUENCE_SLACK], 1, 1)
    attempt.over(committed=False)
    assert attempt.early_bytes == 0
