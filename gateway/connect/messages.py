"""Sets the user of a Spark Connect message to the authenticated principal, whatever the client sent. No I/O.

Every request of ``SparkConnectService`` has its ``UserContext`` in field 2 (a test verifies this for all of them). Only
the tags of the top-level message are read. Fields are skipped by their lengths, so neither plans nor data are parsed.
"""

from __future__ import annotations

SERVICE = "spark.connect.SparkConnectService"
METHODS = (
    "ExecutePlan",
    "AnalyzePlan",
    "Config",
    "AddArtifacts",
    "ArtifactStatus",
    "Interrupt",
    "ReattachExecute",
    "ReleaseExecute",
    "ReleaseSession",
    "FetchErrorDetails",
    "CloneSession",
    "GetStatus",
)
"""Methods that are relayed. Methods of a later Spark are refused until their messages have been reviewed."""

USER_CONTEXT_FIELD = 2
MAX_FIELDS = 100_000
"""Maximum number of fields of a top-level message."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


class MalformedMessage(Exception):
    """The bytes are not a protobuf message, or parsers could read them differently."""


def bind_user(message: bytes, principal: str) -> bytes:
    """``message`` with ``principal`` as its only user. Raises :class:`MalformedMessage`.

    A client may repeat a field, and parsers merge repeated fields. So every ``UserContext`` is removed, and one added.
    """
    kept: list[memoryview | bytes] = []
    view, position, begin = memoryview(message), 0, 0
    for _ in range(MAX_FIELDS):
        if position == len(view):
            kept.append(view[begin:])
            return b"".join([*kept, user_context(principal)])
        start = position
        tag, position = _varint(view, position)
        number, kind = tag >> 3, tag & 7
        position = _skip(view, position, kind)
        if number == 0 or position > len(view):
            raise MalformedMessage("a field without a number, or beyond the end")
        if number == USER_CONTEXT_FIELD:
            kept.append(view[begin:start])
            begin = position
    raise MalformedMessage(f"more than {MAX_FIELDS} fields")


def user_context(principal: str) -> bytes:
    """Field 2: ``UserContext(user_id=principal, user_name=principal)``."""
    name = principal.encode()
    content = b"".join(bytes([number << 3 | _BYTES]) + _encoded(len(name)) + name for number in (1, 2))
    return bytes([USER_CONTEXT_FIELD << 3 | _BYTES]) + _encoded(len(content)) + content


def _skip(view: memoryview, position: int, kind: int) -> int:
    """The position of the next field."""
    if kind == _VARINT:
        return _varint(view, position)[1]
    if kind == _FIXED64:
        return position + 8
    if kind == _FIXED32:
        return position + 4
    if kind == _BYTES:
        length, position = _varint(view, position)
        return position + length
    raise MalformedMessage(f"wire type {kind}")  # groups are obsolete and refused


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for offset in range(_MAX_VARINT_BYTES):
        if position + offset >= len(view):
            raise MalformedMessage("it ends within a number")
        byte = view[position + offset]
        value |= (byte & 0x7F) << 7 * offset
        if byte < 0x80:
            return value, position + offset + 1
    raise MalformedMessage("a number without an end")


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
