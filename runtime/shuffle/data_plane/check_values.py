"""Keyed check values of segments: CRC32C over the job's key, the segment's place and its data.

A segment in the wrong place (another job's, shuffle's, partition's or map's, or another number) is as wrong as one
whose bytes changed. This detects faults of disks, memory and programs; against forgers stands mutual TLS, not this.
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
        """The check value of a segment whose bytes are the parts ``data``, one after the other."""
        value: int = crc32c(_PLACE.pack(partition, map_id, sequence), self._start)
        for part in data:
            value = crc32c(part, value)
        return value
