"""Frames with which a peer makes a worker keep much for little; each function fills one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sluice.runtime.shuffle.data_plane.check_values import SegmentChecks
from sluice.runtime.shuffle.data_plane.frames import (
    SEGMENT_ENTRY,
    FrameType,
    Header,
    ProducerStatement,
    Share,
    pack_share,
)
from tests.integration.shuffle.raw_peer import commit_frame, fetch_frame

SEGMENTS = 4096
"""In each frame of many."""
Frames = Iterator[bytes]


def _push(shuffle: int, map_id: int, rows: list[tuple[int, int, int, int]], data: bytes = b"") -> bytes:
    table = np.array(rows, SEGMENT_ENTRY).tobytes()
    length = len(table) + len(data)
    header = Header(FrameType.PUSH, shuffle=shuffle, map_id=map_id, request=1, length=length, count=len(rows))
    return header.pack() + table + data


def zero_length_segments(key: bytes) -> Frames:
    """Segments without data: a table entry of sixteen bytes each."""
    checks = SegmentChecks(key, 0)
    for map_id in range(150):
        yield _push(0, map_id, [(0, number, 0, checks.value(0, map_id, number)) for number in range(SEGMENTS)])


def high_sequence_numbers(key: bytes) -> Frames:
    """One segment for each map, with a sequence number far ahead."""
    checks = SegmentChecks(key, 0)
    for map_id in range(3_000):
        yield _push(0, map_id, [(0, 65538, 1, checks.value(0, map_id, 65538, b"x"))], b"x")


def scattered_sequence_numbers(key: bytes) -> Frames:
    """Segments of a map with a gap after each sequence number."""
    checks = SegmentChecks(key, 0)
    for map_id in range(200):
        numbers = range(1, 65537, 1024)
        yield _push(0, map_id, [(0, each, 0, checks.value(0, map_id, each)) for each in numbers])


def completed_shuffles(_: bytes) -> Frames:
    """Unknown shuffles that are declared complete without any map."""
    nothing = pack_share(Share(1, 0))
    for shuffle in range(8_000):
        header = Header(
            FrameType.PRODUCE, shuffle=shuffle, request=1, length=len(nothing), aux=ProducerStatement.COMPLETE
        )
        yield header.pack() + nothing


def empty_maps(_: bytes) -> Frames:
    """Commits of announced maps without output."""
    for map_id in range(20_000):
        yield Header(FrameType.COMMIT, shuffle=0, map_id=map_id, request=1, partition=1, aux=map_id + 1).pack()


def shares(_: bytes) -> Frames:
    """Shares of a shuffle that are declared complete without any map."""
    for number in range(20_000):
        payload = pack_share(Share(1 << 20, number))
        yield Header(FrameType.PRODUCE, request=1, length=len(payload), aux=ProducerStatement.COMPLETE).pack() + payload


def reasons(_: bytes) -> Frames:
    """Shuffles that are aborted with a long reason."""
    text = b"\xf0\x9f\x90\x98" * 1000
    for shuffle in range(2_000):
        header = Header(FrameType.PRODUCE, shuffle=shuffle, request=1, length=len(text), aux=ProducerStatement.ABORTED)
        yield header.pack() + text


def partitions(key: bytes) -> Frames:
    """Maps with one byte for each of very many partitions: the index is larger than the data."""
    checks = SegmentChecks(key, 0)
    for map_id in range(100):
        rows = [(each, each, 1, checks.value(each, map_id, each, b"x")) for each in range(SEGMENTS)]
        yield _push(0, map_id, rows, b"x" * SEGMENTS)
        yield commit_frame(0, map_id, SEGMENTS, SEGMENTS)


def followed_shares(_: bytes) -> Frames:
    """Readers that follow many unknown writers."""
    for number in range(20_000):
        payload = pack_share(Share(1 << 20, number))
        header = Header(FrameType.FOLLOW, request=1, aux=1, length=len(payload), extra=1)
        yield header.pack() + payload + Header(FrameType.CANCEL, request=1).pack()


def followed_shuffles(_: bytes) -> Frames:
    """Readers that follow unknown shuffles."""
    nothing = pack_share(Share(1, 0))
    for shuffle in range(1000):
        header = Header(FrameType.FOLLOW, shuffle=shuffle, request=shuffle, aux=1, length=len(nothing), extra=1)
        yield header.pack() + nothing


def reads_without_credit(_: bytes) -> Frames:
    """Fetches, with almost no credit, of the data that :func:`partitions` left."""
    for request in range(1000):
        yield fetch_frame(0, list(range(10)), 0, SEGMENTS, request=request, credit=1)


PUSHES: tuple[Callable[[bytes], Frames], ...] = (
    zero_length_segments,
    high_sequence_numbers,
    scattered_sequence_numbers,
    completed_shuffles,
    empty_maps,
    shares,
    reasons,
    partitions,
)
FETCHES: tuple[Callable[[bytes], Frames], ...] = (followed_shares, followed_shuffles, reads_without_credit)
