"""Sealed segments: the writers of a job encrypt and authenticate them, its readers open them, workers can do neither.

A sealed segment is a head, the data encrypted with AES-256-GCM, and the tag. The head consists of the format version; a
count, which is 0 except in the last segment of a map and partition, where it is the number of their segments; and a
random salt. The key is derived for each map; the nonce is the salt and the sequence number. The head, the segment's
place and the job are authenticated as additional data. ``Sealing.scala`` implements the same format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sluice.runtime.shuffle.data_plane.check_values import Buffer
from sluice.runtime.shuffle.data_plane.errors import FrameRefused, SegmentCorrupt, ShuffleUnavailable

VERSION = 0x41
SALT_BYTES = 8
_HEAD = struct.Struct(f"<BI{SALT_BYTES}s")
_TAG_BYTES = 16
SEAL_BYTES = _HEAD.size + _TAG_BYTES
"""How much longer a sealed segment is than its data."""
_LABEL = b"sluice sealed shuffle 1"
_INFO = struct.Struct("<Iq")
_PLACE = struct.Struct("<IIqI")
_NONCE = struct.Struct(f"<{SALT_BYTES}sI")
_KEY_BYTES = 32
_MOST_SEGMENTS = 1 << 31


class SealKeys:
    """Derives the keys of a job's maps.

    Args:
        secret: known to the job's driver and executors only.
        job: the job's id.
    """

    def __init__(self, secret: str, job: str) -> None:
        self._secret = secret.encode()
        self._job = job.encode()

    def __repr__(self) -> str:
        return "<SealKeys>"

    def of(self, shuffle: int, map_id: int) -> AESGCM:
        """The cipher of one map attempt."""
        info = _INFO.pack(shuffle, map_id) + self._job
        return AESGCM(HKDF(SHA256(), _KEY_BYTES, _LABEL, info).derive(self._secret))

    def place(self, head: bytes, shuffle: int, partition: int, map_id: int, sequence: int) -> bytes:
        """The additional authenticated data of a segment."""
        return head + _PLACE.pack(shuffle, partition, map_id, sequence) + self._job


class MapSealer:
    """Seals the segments of one map attempt; sequence numbers start at 0."""

    def __init__(self, keys: SealKeys, shuffle: int, map_id: int) -> None:
        self._keys = keys
        self._place = shuffle, map_id
        self._aead = keys.of(shuffle, map_id)
        self._salt = os.urandom(SALT_BYTES)
        self._sequence = 0
        self._counts: dict[int, int] = {}
        self._over: set[int] = set()

    @property
    def unfinished(self) -> list[int]:
        """The partitions that have segments but not their last one yet."""
        return sorted(self._counts.keys() - self._over)

    def seal(self, partition: int, data: Buffer, *, last: bool = False) -> bytes:
        """Seal ``data`` as the map's next segment, in ``partition``. The last one may be empty, as a mere end mark.

        Raises:
            FrameRefused: the partition has its last segment already, or the map has too many segments.
        """
        if partition in self._over or self._sequence >= _MOST_SEGMENTS:
            raise FrameRefused(f"partition {partition} has its last segment already, or the map has too many segments")
        sequence, self._sequence = self._sequence, self._sequence + 1
        self._counts[partition] = count = self._counts.get(partition, 0) + 1
        if last:
            self._over.add(partition)
        head = _HEAD.pack(VERSION, count if last else 0, self._salt)
        shuffle, map_id = self._place
        place = self._keys.place(head, shuffle, partition, map_id, sequence)
        return head + self._aead.encrypt(_NONCE.pack(self._salt, sequence), bytes(data), place)


class SegmentOpener:
    """Opens segments of one shuffle."""

    def __init__(self, keys: SealKeys, shuffle: int) -> None:
        self._keys = keys
        self._shuffle = shuffle
        self._map: tuple[int, AESGCM] | None = None

    def open(self, partition: int, map_id: int, sequence: int, data: Buffer) -> tuple[bytes, int]:
        """Decrypt a segment.

        Returns the data and, if this is the last segment of its map and partition, the number of their segments;
        otherwise 0.

        Raises:
            SegmentCorrupt: no writer of the job sealed it for this place.
        """
        head = bytes(data[: _HEAD.size])
        if len(data) < SEAL_BYTES or head[0] != VERSION:
            raise _not_sealed(partition, map_id, sequence)
        if self._map is None or self._map[0] != map_id:
            self._map = map_id, self._keys.of(self._shuffle, map_id)
        _, last, salt = _HEAD.unpack(head)
        place = self._keys.place(head, self._shuffle, partition, map_id, sequence)
        try:
            return self._map[1].decrypt(_NONCE.pack(salt, sequence), bytes(data[_HEAD.size :]), place), last
        except InvalidTag:
            raise _not_sealed(partition, map_id, sequence) from None


class SealedBlocks:
    """Checks that one answer of a worker is complete.

    Args:
        blocks: the partitions of each map that have a segment, as reported by the writers and not by the worker.
        partitions: the range that is read, from the first partition to before the last.
        ordered: whether the segments of a partition must be sorted by (map, sequence).
    """

    def __init__(self, blocks: Mapping[int, Collection[int]], partitions: tuple[int, int], *, ordered: bool) -> None:
        first, end = partitions
        self._left: dict[tuple[int, int], int | None] = {
            (map_id, partition): None
            for map_id, found in blocks.items()
            for partition in found
            if first <= partition < end
        }
        self._had = dict.fromkeys(self._left, 0)
        self._ordered = ordered
        self._greatest = (-1, -1, -1)

    def add(self, partition: int, map_id: int, sequence: int, last: int) -> None:
        """Record a segment that is not a repetition; raises :class:`SegmentCorrupt` if it does not fit in."""
        block = map_id, partition
        if block not in self._had:
            raise _wrong(partition, map_id, "is empty, and a segment came")
        self._had[block] += 1
        all_of_it = self._left[block]
        if last and all_of_it is not None:
            raise _wrong(partition, map_id, "has two last segments")
        if last:
            self._left[block] = all_of_it = last
        if all_of_it is not None and self._had[block] > all_of_it:
            raise _wrong(partition, map_id, "has more segments than it was sealed with")
        place = (partition, map_id, sequence) if self._ordered else (partition, -1, -1)
        if place < self._greatest:
            raise _wrong(partition, map_id, f"came out of order (segment {sequence})")
        self._greatest = place

    def finish(self) -> None:
        """Check at the end of the answer that it is complete; raises :class:`ShuffleUnavailable` if it is not."""
        for (map_id, partition), count in self._left.items():
            if self._had[map_id, partition] != count:
                raise ShuffleUnavailable(
                    f"segments of partition {partition} of map {map_id} are missing", map_id=map_id, partition=partition
                )


def _not_sealed(partition: int, map_id: int, sequence: int) -> SegmentCorrupt:
    return _wrong(partition, map_id, f"was not sealed like this (segment {sequence})")


def _wrong(partition: int, map_id: int, what: str) -> SegmentCorrupt:
    return SegmentCorrupt(f"partition {partition} of map {map_id} {what}", partition=partition, map_id=map_id)
