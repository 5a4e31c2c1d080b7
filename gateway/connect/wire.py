"""gRPC messages as raw bytes with a size limit. The relay does not decode them."""

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
"""Maximum message size in both directions, the same as in Spark Connect's own server and clients."""

_PREFIX_BYTES = 5


class RawCodec(CodecBase):
    """Passes messages through as bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ANN401, ARG002  grpclib's signature
        """Return the bytes unchanged."""
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:  # noqa: ANN401, ARG002  grpclib's signature
        """Return the bytes unchanged."""
        return data


class RawDetails(StatusDetailsCodecBase):
    """Passes error details (``grpc-status-details-bin``) through as bytes."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:  # noqa: ANN401, ARG002
        """Return the bytes unchanged."""
        return bytes(details)

    def decode(self, status: Status, message: str | None, data: bytes) -> bytes:  # noqa: ARG002
        """Return the bytes unchanged."""
        return data


async def receive(stream: Http2Stream, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes | None:
    """The next message of a stream; None at its end. Raises :class:`GRPCError` if it cannot be accepted."""
    prefix = await stream.recv_data(_PREFIX_BYTES)
    if not prefix:
        return None
    if len(prefix) != _PREFIX_BYTES or prefix[0] != 0:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed or truncated messages are not supported")
    length = int.from_bytes(prefix[1:], "big")
    if length > max_bytes:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, f"a message of more than {max_bytes} bytes")
    message = await stream.recv_data(length) if length else b""
    if len(message) != length:
        raise GRPCError(Status.INVALID_ARGUMENT, "a truncated message")
    return message


class BoundedStream(ClientStream[bytes, bytes]):
    """A call whose replies have a size limit."""

    async def recv_message(self) -> bytes | None:
        """The next reply; None at the end."""
        if not self._recv_initial_metadata_done:
            await self.recv_initial_metadata()
        with self._wrapper:
            return await receive(self._stream)


class BoundedChannel(Channel):
    """A channel whose calls are :class:`BoundedStream`."""

    def call(self, path: str, deadline: Deadline | None) -> BoundedStream:
        """Make a call. Unary and streaming calls are the same on the wire."""
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
