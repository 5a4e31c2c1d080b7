"""Splits Arrow IPC streams, as Spark sends them, into the messages that Flight sends.

This module reads only the lengths, with bounds checks, and never the data, which concerns only the session's driver and
its client. Module ``rows`` reads values, which the metadata commands need.

Source: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.gateway.flight_sql.messages import InvalidMessage

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
"""Kinds of messages (``MessageHeader`` of Message.fbs)."""

MAX_HEADER_BYTES = 4 << 20
"""A header holds the schema of many columns, or the offsets of their buffers."""
MAX_MESSAGES = 1024
"""Messages in one stream; Spark sends a schema and a batch."""
_CONTINUATION = b"\xff\xff\xff\xff"
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_COMPRESSION = 3
_OFFSET_BYTES = 4


@dataclass(frozen=True, slots=True)
class IpcMessage:
    """One IPC message; ``header`` is its flatbuffer."""

    kind: int
    compressed: bool
    header: bytes
    body: bytes


def split(stream: bytes) -> Iterator[IpcMessage]:
    """The messages of a whole IPC stream; raises :class:`InvalidMessage`."""
    position = 0
    try:
        for _ in range(MAX_MESSAGES):
            if position == len(stream):
                return
            if stream[position : position + 4] != _CONTINUATION:
                raise InvalidMessage("an IPC message without its continuation marker")
            (length,) = struct.unpack_from("<i", stream, position + 4)
            position += 8
            if length == 0:
                return
            if not 0 < length <= min(MAX_HEADER_BYTES, len(stream) - position):
                raise InvalidMessage(f"an IPC header of {length} bytes")
            header = stream[position : position + length]
            position += length
            kind, body_bytes, compressed = _described(header)
            if not 0 <= body_bytes <= len(stream) - position:
                raise InvalidMessage(f"an IPC body of {body_bytes} bytes")
            yield IpcMessage(kind, compressed, header, stream[position : position + body_bytes])
            position += body_bytes
        raise InvalidMessage(f"more than {MAX_MESSAGES} IPC messages")
    except struct.error as error:
        raise InvalidMessage("a truncated IPC message") from error


def encapsulated(header: bytes) -> bytes:
    """A message without a body in the form that Flight uses for schemas: continuation marker, length, header."""
    return _CONTINUATION + struct.pack("<i", len(header)) + header


def _described(header: bytes) -> tuple[int, int, bool]:
    """The kind, the length of the body, and whether the body is compressed."""
    root = _table(header, 0)
    kind_at, at, length_at = (_field(header, root, which) for which in (_HEADER_TYPE, _HEADER, _BODY_LENGTH))
    kind = struct.unpack_from("<B", header, kind_at)[0] if kind_at else 0
    body_bytes = struct.unpack_from("<q", header, length_at)[0] if length_at else 0
    compressed = kind == RECORD_BATCH and at > 0 and _field(header, _table(header, at), _COMPRESSION) > 0
    return kind, body_bytes, compressed


def _table(header: bytes, at: int) -> int:
    """The position of the table to which the offset at ``at`` points."""
    return at + int(struct.unpack_from("<I", header, at)[0])


def _field(header: bytes, table: int, number: int) -> int:
    """The position of a field of a table; 0 when the field is absent."""
    vtable = table - struct.unpack_from("<i", header, table)[0]
    if vtable < 0:
        raise InvalidMessage("an IPC header that points before its beginning")
    size: int = struct.unpack_from("<H", header, vtable)[0]
    slot = _OFFSET_BYTES + 2 * number
    offset: int = struct.unpack_from("<H", header, vtable + slot)[0] if slot + 2 <= size else 0
    return table + offset if offset else 0
