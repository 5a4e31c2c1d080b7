"""Keyed check values of segments: a CRC32C over the job's key, the segment's place and its data.

The check fails if the bytes of a segment changed, and also if the segment is in the wrong place: another job, shuffle,
partition, map or sequence number. It detects faults of disks, memory and programs. It does not stop forgery; mutual TLS
does.
"""

from __future__ import annotations

import struct

from awscrt.checksums import crc32c  # type: ignore[import-untyped]  # has no types

KEY_BYTES = 8
"""Size of a job's integrity key."""

_PLACE = struct.Struct("<IqI")
_KEY_AND_SHUFFLE = struct.Struct("<8sI")

Buffer = bytes | bytearray | memoryview


class SegmentChecks:
    """Computes the check values of one job's shuffle."""

    def __init__(self, key: bytes, shuffle: int) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"an integrity key has {KEY_BYTES} bytes")
        self._start: int = crc32c(_KEY_AND_SHUFFLE.pack(key, shuffle))

    def value(self, partition: int, map_id: int, sequence: int, *data: Buffer) -> int:
        """The check value of a segment whose data is the concatenation of ``data``."""
        value: int = crc32c(_PLACE.pack(partition, map_id, sequence), self._start)
        for part in data:
            value = crc32c(part, value)
        return value
