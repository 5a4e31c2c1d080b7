"""Encryption at rest: what lies on a worker's disks can be read by this worker alone.

Each segment is sealed by AES-256-GCM with a nonce of its own under its shuffle's key, which is derived from the
worker's secret, the job and the shuffle. Its place is authenticated with it, so that it cannot be put elsewhere.
Index rows (sizes and check values) are not encrypted.
"""

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sluice.runtime.shuffle.data_plane import SegmentCorrupt
from sluice.runtime.shuffle.worker.config import SECRET_BYTES

_NONCE_BYTES = 12
OVERHEAD_BYTES = _NONCE_BYTES + 16
"""So much longer a sealed segment is: nonce and tag."""
_KEY_BYTES = 32
_PLACE = struct.Struct("<IqI")


class SegmentCipher:
    """Seals and opens the segments of one shuffle.

    Args:
        secret: the worker's.
        name: ``job/shuffle``.
    """

    def __init__(self, secret: bytes, name: str) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a worker's secret has {SECRET_BYTES} bytes")
        info = f"sluice shuffle segments at rest {name}".encode()
        self._aead = AESGCM(HKDF(SHA256(), _KEY_BYTES, None, info).derive(secret))

    def seal(self, partition: int, map_id: int, sequence: int, data: memoryview) -> memoryview:
        """What is written instead of ``data``."""
        nonce = os.urandom(_NONCE_BYTES)
        return memoryview(nonce + self._aead.encrypt(nonce, data, _PLACE.pack(partition, map_id, sequence)))

    def open(self, partition: int, map_id: int, sequence: int, sealed: memoryview) -> bytes:
        """The data again; :class:`SegmentCorrupt` when it is not what was sealed for this place."""
        place = _PLACE.pack(partition, map_id, sequence)
        try:
            return self._aead.decrypt(bytes(sealed[:_NONCE_BYTES]), sealed[_NONCE_BYTES:], place)
        except InvalidTag:
            raise SegmentCorrupt(
                f"partition {partition} is damaged here: segment {sequence} of map {map_id} has changed",
                partition=partition,
                map_id=map_id,
            ) from None
