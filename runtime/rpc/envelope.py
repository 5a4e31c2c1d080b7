"""The wire format of a stream: envelopes, sent in batches.

One gRPC message is a msgpack array of envelopes; an envelope is an array that starts with its tag. Arguments and
results are opaque bytes here: they are decoded into the types of their method only after the method is known and the
caller admitted. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from sluice.runtime.rpc.errors import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, MessageTooLarge, ProtocolViolation

PROTOCOL_VERSION = 4
"""Version of this wire format. Two peers use the lower of their versions (ADR 126)."""

OLDEST_VERSION = 4
"""The oldest version that this release supports; older peers are refused."""

MAX_ENVELOPE_BYTES = 4 << 20
"""Largest encoded envelope, in bytes."""

MAX_BATCH_BYTES = MAX_ENVELOPE_BYTES + 1024
"""Largest gRPC message, in bytes: one envelope of the largest size fits."""

BATCH_TARGET_BYTES = 256 << 10
"""Size in bytes at which a batch is closed, so that small envelopes do not wait behind many others."""

MAX_BATCH_ENVELOPES = 4096
"""Maximum number of envelopes in one batch."""

MAX_NAME_CHARS = 256
"""Longest endpoint, method or error name, in characters."""

MAX_TOKEN_BYTES = 64
"""Longest fencing token, in bytes."""

_SLACK_CHARS = 16
"""Room for the ellipsis of truncated texts."""

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
Token = Annotated[bytes, msgspec.Meta(max_length=MAX_TOKEN_BYTES)]
Payload = Annotated[bytes, msgspec.Meta(max_length=MAX_ENVELOPE_BYTES)]
Message = Annotated[str, msgspec.Meta(max_length=MAX_MESSAGE_CHARS + _SLACK_CHARS)]
Traceback = Annotated[str, msgspec.Meta(max_length=MAX_TRACEBACK_CHARS + _SLACK_CHARS)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=0):
    """The first envelope of each direction of a stream, with the newest version that its sender supports."""

    version: Count


class Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """An ask: answered by exactly one :class:`Reply` or :class:`Failure` with the same id."""

    id: Count
    endpoint: Name
    method: Name
    token: Token | None
    arguments: Payload


class Tell(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A call without an answer."""

    endpoint: Name
    method: Name
    token: Token | None
    arguments: Payload


class Reply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """The result of a call."""

    id: Count
    result: Payload


class Failure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """The error of a call."""

    id: Count
    error: Name
    what: Message
    remedy: Message
    remote_traceback: Traceback


class Cancel(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """The caller has given up this call."""

    id: Count


class Consumed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """Credit for the sender: this many tells, with this many bytes of arguments, have been processed."""

    tells: Count
    size: Count


class Ping(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """Asks for a sign of life; answered by :class:`Pong`."""


class Pong(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """Answers a :class:`Ping`."""


class Goodbye(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=9):
    """The last envelope, with the reason why the sender closes the stream."""

    reason: Message


Envelope = Hello | Call | Tell | Reply | Failure | Cancel | Consumed | Ping | Pong | Goodbye

OF_THE_CONNECTION = frozenset({Hello, Ping, Pong})
"""Envelopes that the connection handles itself."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[list[Envelope]] = msgspec.msgpack.Decoder(
    Annotated[list[Envelope], msgspec.Meta(max_length=MAX_BATCH_ENVELOPES)]
)


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode one envelope; raises :class:`MessageTooLarge`."""
    data = _ENCODER.encode(envelope)
    if len(data) > MAX_ENVELOPE_BYTES:
        raise MessageTooLarge(
            f"{type(envelope).__name__} of {len(data)} bytes, at most {MAX_ENVELOPE_BYTES} fit into an envelope",
            "send large content through the blob server",
        )
    return data


def join_batch(envelopes: Sequence[bytes]) -> bytes:
    """Join encoded envelopes into one gRPC message (a msgpack array 16)."""
    return b"".join((b"\xdc", len(envelopes).to_bytes(2, "big"), *envelopes))


def decode_batch(data: bytes) -> list[Envelope]:
    """Decode one gRPC message; raises :class:`ProtocolViolation`, which contains nothing of the content."""
    if len(data) > MAX_BATCH_BYTES:
        raise ProtocolViolation(f"a message of {len(data)} bytes, at most {MAX_BATCH_BYTES} are accepted")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"a malformed message: {error}") from None
