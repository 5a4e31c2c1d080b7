"""The frames of the data plane: their format and their limits. No I/O.

All numbers are little endian. A frame is a header of 48 bytes and a payload. The payload of PUSH and DATA is a table of
segments, followed by their data back to back. docs/reference/shuffle-protocol.md specifies the protocol.
"""

from __future__ import annotations

import enum
import struct
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.runtime.shuffle.data_plane.errors import BY_CODE, ErrorCode, FrameRefused, ShuffleError

MAGIC = 0x31434C53
"""``SLC1`` in wire order."""
VERSION = 1
HEADER = struct.Struct("<IBBHIIqIIIIQ")
HEADER_BYTES = HEADER.size

MAX_SEGMENT_BYTES = 4 << 20
"""Largest segment."""
MAX_PUSH_PAYLOAD_BYTES = (8 << 20) + (64 << 10)
"""Largest payload of a PUSH: table and data."""
MAX_FETCH_PAYLOAD_BYTES = 8 << 20
"""Largest payload of a FETCH: map ids."""
MAX_PAYLOAD_BYTES = 64 << 10
"""Largest payload of any other frame from a client."""
MAX_DATA_BYTES = 1 << 20
"""Maximum bytes of data in one DATA frame, unless a single segment is larger."""
MAX_ERROR_TEXT_BYTES = 4 << 10
MAX_SEGMENTS_PER_PUSH = 4 << 10
"""Maximum segments in one PUSH frame."""
MAX_SEGMENTS_PER_DATA = 64 << 10
"""Maximum segments in one DATA frame."""
MAX_PARTITION = 1 << 24
"""Partition numbers are below this value."""

MAX_MAPS_PER_BATCH = 4 << 10
"""Maximum maps that one MAPS frame announces."""

FLAG_ORDERED = 0x01
"""FETCH flag: send the segments of each partition sorted by (map, sequence)."""

SEGMENT_ENTRY = np.dtype([("partition", "<u4"), ("sequence", "<u4"), ("length", "<u4"), ("check", "<u4")])
"""One row of the table of a PUSH."""
DATA_ENTRY = np.dtype([("partition", "<u4"), ("sequence", "<u4"), ("map", "<i8"), ("length", "<u4"), ("check", "<u4")])
"""One row of the table of a DATA."""

MAP_ENTRY = np.dtype([("map", "<i8"), ("index", "<u4")])
"""One row of a MAPS payload."""

PushEntry = tuple[int, int, int, int]
DataEntry = tuple[int, int, int, int, int]
_PUSH_ROW = struct.Struct("<IIII")
_DATA_ROW = struct.Struct("<IIqII")
_SHARE = struct.Struct("<II")


class FrameType(enum.IntEnum):
    """The type of a frame."""

    HELLO = 1
    PUSH = 2
    COMMIT = 3
    ABORT = 4
    FETCH = 5
    CREDIT = 6
    CANCEL = 7
    PRODUCE = 8
    FOLLOW = 9
    HELLO_OK = 17
    PUSH_OK = 18
    COMMIT_OK = 19
    PRODUCE_OK = 20
    DATA = 21
    END = 22
    MAPS = 23
    MAPS_SENT = 24
    ERROR = 31


class ProducerStatement(enum.IntEnum):
    """The statement of a PRODUCE frame, in ``aux``. ``count`` is a number of maps."""

    COMPLETE = 1
    """The share has ``count`` maps, all of which this worker must have, and no more follow."""
    ABORTED = 2
    """The shuffle is given up and nothing of it counts. The payload is the reason."""
    FORGET = 3
    """All readers have received the first ``count`` maps of the share."""


FROM_CLIENT = frozenset(kind for kind in FrameType if kind < FrameType.HELLO_OK)
_MAX_LENGTH = {
    FrameType.PUSH: MAX_PUSH_PAYLOAD_BYTES,
    FrameType.FETCH: MAX_FETCH_PAYLOAD_BYTES,
    FrameType.DATA: MAX_SEGMENT_BYTES + MAX_SEGMENTS_PER_DATA * DATA_ENTRY.itemsize,
}
_EMPTY = frozenset({FrameType.COMMIT, FrameType.ABORT, FrameType.CREDIT, FrameType.CANCEL})
"""Frames without payload."""


class Header(msgspec.Struct, frozen=True):
    """The header of one frame. Fields that a frame type does not use are 0."""

    kind: FrameType
    shuffle: int = 0
    partition: int = 0
    map_id: int = 0
    request: int = 0
    length: int = 0
    count: int = 0
    aux: int = 0
    extra: int = 0
    flags: int = 0

    def pack(self) -> bytes:
        """Return the 48 bytes of the header."""
        return HEADER.pack(
            MAGIC,
            self.kind,
            self.flags,
            0,
            self.shuffle,
            self.partition,
            self.map_id,
            self.request,
            self.length,
            self.count,
            self.aux,
            self.extra,
        )


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """The payload of HELLO. Only a shuffle worker that hands over data sets ``job``: the job it acts for."""

    version: int
    direction: Literal["push", "fetch"]
    job: str = ""


_HELLO_DECODER = msgspec.msgpack.Decoder(Hello)


def parse_header(data: bytes | bytearray | memoryview, *, from_client: bool) -> Header:
    """Parse the header in the first 48 bytes of ``data``, and check every limit that does not depend on other frames.

    Raises:
        FrameRefused: the header is invalid; the message says why.
    """
    magic, number, flags, reserved, shuffle, partition, map_id, request, length, count, aux, extra = HEADER.unpack_from(
        data
    )
    if magic != MAGIC:
        raise FrameRefused(f"a frame begins with {magic:#010x} instead of {MAGIC:#010x}")
    try:
        kind = FrameType(number)
    except ValueError:
        raise FrameRefused(f"{number} is not a known frame type") from None
    if (kind in FROM_CLIENT) is not from_client:
        raise FrameRefused(f"a frame of type {kind.name} goes the other way")
    if reserved:
        raise FrameRefused(f"the reserved field of a frame of type {kind.name} is {reserved}")
    limit = 0 if kind in _EMPTY else _MAX_LENGTH.get(kind, MAX_PAYLOAD_BYTES)
    if length > limit:
        raise FrameRefused(f"a frame of type {kind.name} has {length} bytes of payload", f"at most {limit} are allowed")
    if kind in {FrameType.PUSH, FrameType.DATA}:
        _check_count(kind, count, length)
    return Header(kind, shuffle, partition, map_id, request, length, count, aux, extra, flags)


def _check_count(kind: FrameType, count: int, length: int) -> None:
    most = MAX_SEGMENTS_PER_PUSH if kind is FrameType.PUSH else MAX_SEGMENTS_PER_DATA
    if not 0 < count <= most:
        raise FrameRefused(f"a frame of type {kind.name} has {count} segments", f"1 to {most} are allowed")
    entry = SEGMENT_ENTRY if kind is FrameType.PUSH else DATA_ENTRY
    if count * entry.itemsize > length:
        raise FrameRefused(f"the table of {count} segments does not fit into {length} bytes of payload")


def parse_push_table(header: Header, data: bytes | bytearray | memoryview) -> list[PushEntry]:
    """Parse the table of a PUSH: (partition, sequence, length, check) of each segment.

    The rows are tuples rather than an array, because most frames have few segments and each row is read once.

    Raises:
        FrameRefused: a partition or a length is out of range, or the lengths do not add up to the payload.
    """
    size = header.count * SEGMENT_ENTRY.itemsize
    table: list[PushEntry] = list(_PUSH_ROW.iter_unpack(data[:size]))
    _check_table(header, [row[2] for row in table], max(row[0] for row in table), size)
    return table


def parse_data_table(header: Header, data: bytes | bytearray | memoryview) -> list[DataEntry]:
    """Parse the table of a DATA: (partition, sequence, map, length, check) of each segment; raises as for PUSH."""
    size = header.count * DATA_ENTRY.itemsize
    table: list[DataEntry] = list(_DATA_ROW.iter_unpack(data[:size]))
    _check_table(header, [row[3] for row in table], max(row[0] for row in table), size)
    return table


def _check_table(header: Header, lengths: list[int], highest: int, table_bytes: int) -> None:
    longest, total = max(lengths), sum(lengths)
    if longest > MAX_SEGMENT_BYTES:
        raise FrameRefused(f"a segment has {longest} bytes", f"at most {MAX_SEGMENT_BYTES} are allowed")
    if total != header.length - table_bytes:
        raise FrameRefused(f"the segments add up to {total} bytes, the frame has {header.length - table_bytes} of data")
    if highest >= MAX_PARTITION:
        raise FrameRefused(f"partition {highest} is out of range", f"it must be below {MAX_PARTITION}")


def pack_hello(direction: Literal["push", "fetch"], job_id: str = "") -> bytes:
    """Return a HELLO frame, header and payload."""
    payload = msgspec.msgpack.encode(Hello(VERSION, direction, job_id))
    return Header(FrameType.HELLO, length=len(payload)).pack() + payload


def parse_hello(payload: bytes | bytearray | memoryview) -> Hello:
    """Parse the payload of HELLO; raises :class:`FrameRefused` if it is malformed or of another version."""
    try:
        hello = _HELLO_DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameRefused("the payload of HELLO is malformed") from error
    if hello.version != VERSION:
        raise FrameRefused(f"the peer speaks version {hello.version}", f"this side speaks {VERSION}")
    return hello


def parse_map_ids(header: Header, payload: bytes | bytearray | memoryview) -> npt.NDArray[np.int64]:
    """Parse the map ids of FETCH; they are returned in ascending order.

    Raises:
        FrameRefused: there are no map ids, a duplicate, or another number than in the header, or the partition range is
            empty or out of range.
    """
    if header.count == 0 or header.length != 8 * header.count:
        raise FrameRefused(f"a FETCH of {header.count} maps has {header.length} bytes of map ids")
    _check_range(header)
    return _distinct(np.frombuffer(payload, "<i8", header.count))


class Share(NamedTuple):
    """The maps of one writer: those whose index modulo ``modulus`` is ``remainder``."""

    modulus: int
    remainder: int


def pack_share(share: Share) -> bytes:
    """Return the payload of a FOLLOW, or of a PRODUCE with COMPLETE or FORGET."""
    return _SHARE.pack(*share)


def parse_follow(header: Header, payload: bytes | bytearray | memoryview) -> Share:
    """Parse the payload of FOLLOW; raises :class:`FrameRefused` for an invalid share or partition range."""
    _check_range(header)
    return _parse_share(header, payload)


def _parse_share(header: Header, payload: bytes | bytearray | memoryview) -> Share:
    if header.length != _SHARE.size:
        raise FrameRefused(f"the share of a {header.kind.name} has {header.length} bytes instead of {_SHARE.size}")
    share = Share(*_SHARE.unpack_from(payload))
    if not share.remainder < share.modulus:
        raise FrameRefused(
            f"a {header.kind.name} names the maps {share.remainder} modulo {share.modulus}, which do not exist"
        )
    return share


class Production(NamedTuple):
    """The contents of a PRODUCE.

    ``reason`` is set for ``ABORTED``; ``share`` and ``maps``, a number of its maps, are set for the others.
    """

    statement: ProducerStatement
    share: Share
    maps: int
    reason: str


def parse_produced(header: Header, payload: bytes | bytearray | memoryview) -> Production:
    """Parse a PRODUCE.

    Raises:
        FrameRefused: the statement is unknown, or the payload does not match it.
    """
    try:
        what = ProducerStatement(header.aux)
    except ValueError:
        raise FrameRefused(f"{header.aux} is not a known statement of a PRODUCE") from None
    if what is not ProducerStatement.ABORTED:
        return Production(what, _parse_share(header, payload), header.count, "")
    if header.count or header.length > MAX_ERROR_TEXT_BYTES:
        raise FrameRefused(f"a PRODUCE with {what.name} has {header.length} bytes and a count of {header.count}")
    return Production(what, Share(1, 0), 0, printable(bytes(payload[: header.length])))


def parse_maps(header: Header, payload: bytes | bytearray | memoryview) -> list[tuple[int, int]]:
    """Parse the (map id, index) pairs of MAPS; raises :class:`FrameRefused`."""
    if header.count > MAX_MAPS_PER_BATCH or header.length != header.count * MAP_ENTRY.itemsize:
        raise FrameRefused(f"a MAPS announces {header.count} maps in {header.length} bytes")
    entries: list[tuple[int, int]] = np.frombuffer(payload, MAP_ENTRY, header.count).tolist()
    return entries


def _check_range(header: Header) -> None:
    if not header.partition < header.aux <= MAX_PARTITION:
        raise FrameRefused(f"a {header.kind.name} of the invalid partition range {header.partition} to {header.aux}")


def _distinct(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    maps = np.sort(ids)
    if (maps[1:] == maps[:-1]).any():
        raise FrameRefused("a FETCH names a map twice")
    return maps


def printable(text: bytes) -> str:
    """Decode text from a peer, at most :data:`MAX_ERROR_TEXT_BYTES`, so that it is safe to log."""
    decoded = text[:MAX_ERROR_TEXT_BYTES].decode(errors="replace")
    return "".join(character if character.isprintable() else "?" for character in decoded)


def pack_error(error: ShuffleError, *, shuffle: int = 0, request: int = 0) -> bytes:
    """Return the ERROR frame that reports ``error`` to a client."""
    text = str(error).encode()[:MAX_ERROR_TEXT_BYTES].decode(errors="ignore").encode()
    header = Header(
        FrameType.ERROR,
        shuffle=shuffle,
        partition=error.partition,
        map_id=error.map_id,
        request=request,
        length=len(text),
        aux=error.code,
    )
    return header.pack() + text


def error_of(header: Header, payload: bytes | bytearray | memoryview) -> ShuffleError:
    """Return the error that an ERROR frame reports."""
    known = BY_CODE.get(header.aux, ShuffleError)
    text = printable(bytes(payload[:MAX_ERROR_TEXT_BYTES]))
    name = ErrorCode(header.aux).name if header.aux in BY_CODE else f"code {header.aux}"
    return known(text or name, partition=header.partition, map_id=header.map_id)
