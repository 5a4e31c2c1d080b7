"""Encryption at rest: only this worker can read the data on its disks.

Each segment is sealed with AES-256-GCM, with its own random nonce, under the key of its shuffle. The key is derived
from the worker's secret, the job and the shuffle. The place of a segment is authenticated, so it cannot be moved.
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
"""How much longer a sealed segment is than its data: nonce and tag."""
_KEY_BYTES = 32
_PLACE = struct.Struct("<IqI")


class SegmentCipher:
    """Seals and opens the segments of one shuffle.

    Args:
        secret: the worker's secret.
        name: ``job/shuffle``.
    """

    def __init__(self, secret: bytes, name: str) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a worker's secret has {SECRET_BYTES} bytes")
        info = f"sluice shuffle segments at rest {name}".encode()
        self._aead = AESGCM(HKDF(SHA256(), _KEY_BYTES, None, info).derive(secret))

    def seal(self, partition: int, map_id: int, sequence: int, data: memoryview) -> memoryview:
        """Return the sealed segment, which is written instead of ``data``."""
        nonce = os.urandom(_NONCE_BYTES)
        return memoryview(nonce + self._aead.encrypt(nonce, data, _PLACE.pack(partition, map_id, sequence)))

    def open(self, partition: int, map_id: int, sequence: int, sealed: memoryview) -> bytes:
        """Return the data of a sealed segment; raises :class:`SegmentCorrupt` if it was not sealed for this place."""
        place = _PLACE.pack(partition, map_id, sequence)
        try:
            return self._aead.decrypt(bytes(sealed[:_NONCE_BYTES]), sealed[_NONCE_BYTES:], place)
        except InvalidTag:
            raise SegmentCorrupt(
                f"partition {partition} is damaged here: segment {sequence} of map {map_id} has changed",
                partition=partition,
                map_id=map_id,
            ) from None
