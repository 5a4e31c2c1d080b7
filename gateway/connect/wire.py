"""gRPC messages as bytes, bounded: what passes through is not decoded, and cannot be of any size."""

from __future__ import annotations

from typing import Any, cast

from grpclib.client import Channel, Stream as ClientStream
from grpclib.const import Cardinality, Status
from grpclib.encoding.base import CodecBase, StatusDetailsCodecBase
from grpclib.exceptions import GRPCError
from grpclib.metadata import Deadline
from grpclib.protocol import Stream as Http2Stream
from multidict import MultiDict

MAX_MESSAGE_BYTES = 128 << 20
"""Largest message in either direction; as Spark Connect's own server and clients have it."""

_PREFIX_BYTES = 5


class RawCodec(CodecBase):
    """Messages stay the bytes that they are."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ANN401, ARG002  grpclib's signature
        """Return the bytes unchanged."""
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:  # noqa: ANN401, ARG002  grpclib's signature
        """Return the bytes unchanged."""
        return data


class RawDetails(StatusDetailsCodecBase):
    """Details of an error (``grpc-status-details-bin``) stay the bytes that they are."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:  # noqa: ANN401, ARG002
        """Return the bytes unchanged."""
        return bytes(details)

    def decode(self, status: Status, message: str | None, data: bytes) -> bytes:  # noqa: ARG002
        """Return the bytes unchanged."""
        return data


async def receive(stream: Http2Stream, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes | None:
    """The next message of a stream, None at its end; raises :class:`GRPCError` for one that is not taken."""
    prefix = await stream.recv_data(_PREFIX_BYTES)
    if not prefix:
        return None
    if len(prefix) != _PREFIX_BYTES or prefix[0] != 0:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed or truncated messages are not taken")
    length = int.from_bytes(prefix[1:], "big")
    if length > max_bytes:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, f"a message of more than {max_bytes} bytes")
    message = await stream.recv_data(length) if length else b""
    if len(message) != length:
        raise GRPCError(Status.INVALID_ARGUMENT, "a truncated message")
    return message


class BoundedStream(ClientStream[bytes, bytes]):
    """A call whose replies are bounded."""

    async def recv_message(self) -> bytes | None:
        """The next reply, None at the end."""
        if not self._recv_initial_metadata_done:
            await self.recv_initial_metadata()
        with self._wrapper:
            return await receive(self._stream)


class BoundedChannel(Channel):
    """A channel of :class:`BoundedStream`."""

    def call(self, path: str, deadline: Deadline | None) -> BoundedStream:
        """One call of any kind: on the wire they are the same."""
        return BoundedStream(
            self,
            path,
            cast("Any", MultiDict()),
            Cardinality.STREAM_STREAM,
            bytes,
            bytes,
            codec=self._codec,
            status_details_codec=self._status_details_codec,
            dispatch=self.__dispatch__,
            deadline=deadline,
        )
