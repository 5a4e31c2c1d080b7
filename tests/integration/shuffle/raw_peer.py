"""A peer that sends arbitrary bytes over mutual TLS, and returns the worker's answers."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from sluice.pki.channels import Channel, server_policy
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.data_plane.check_values import SegmentChecks
from sluice.runtime.shuffle.data_plane.frames import (
    HEADER_BYTES,
    SEGMENT_ENTRY,
    FrameType,
    Header,
    pack_hello,
    parse_header,
)
from tests.hostile import TRUST_DOMAIN

TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class Answer:
    """A frame from the worker."""

    header: Header
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of an ERROR frame."""
        assert self.header.kind is FrameType.ERROR
        return self.header.aux


class RawPeer:
    """A blocking connection of ``identity`` to a worker, with a timeout."""

    def __init__(self, identity: TlsIdentity, port: int) -> None:
        context = identity.client_context(server_policy(Channel.DATA, TRUST_DOMAIN))
        raw = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self.socket = context.wrap_socket(raw)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def hello(self, direction: str) -> Header:
        """Send a valid hello; returns the worker's answer."""
        self.send(pack_hello("push" if direction == "push" else "fetch"))
        return self.answer().header

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def answer(self) -> Answer:
        """Return the next frame."""
        header = parse_header(self._exactly(HEADER_BYTES), from_client=False)
        return Answer(header, self._exactly(header.length))

    def answer_of(self, kind: FrameType) -> Answer:
        """Return the next frame other than a PUSH_OK; it must be a ``kind``."""
        while (answer := self.answer()).header.kind is FrameType.PUSH_OK and kind is not FrameType.PUSH_OK:
            pass
        assert answer.header.kind is kind, (answer.header, answer.payload)
        return answer

    def ended(self) -> bool:
        """Whether the worker ends the connection, no matter what it sends before."""
        try:
            while self.socket.recv(65536):
                pass
        except (ssl.SSLError, ConnectionError):
            return True
        except TimeoutError:
            return False
        return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionAbortedError("the worker ended the connection")
            data += more
        return data


def push_frame(
    checks: SegmentChecks,
    shuffle: int,
    map_id: int,
    segments: list[tuple[int, int, bytes]],
    *,
    request: int = 0,
    spoil: bool = False,
) -> bytes:
    """A PUSH frame with segments of (partition, sequence, data)."""
    table = np.array(
        [
            (partition, sequence, len(data), checks.value(partition, map_id, sequence, data) ^ spoil)
            for partition, sequence, data in segments
        ],
        SEGMENT_ENTRY,
    ).tobytes()
    payload = table + b"".join(data for _, _, data in segments)
    header = Header(
        FrameType.PUSH, shuffle=shuffle, map_id=map_id, request=request, length=len(payload), count=len(segments)
    )
    return header.pack() + payload


def commit_frame(shuffle: int, map_id: int, count: int, size: int, *, request: int = 1) -> bytes:
    return Header(FrameType.COMMIT, shuffle=shuffle, map_id=map_id, request=request, count=count, extra=size).pack()


def fetch_frame(
    shuffle: int, maps: list[int], first: int, end: int, *, request: int = 1, credit: int = 1 << 30, flags: int = 0
) -> bytes:
    payload = np.array(maps, "<i8").tobytes()
    header = Header(
        FrameType.FETCH,
        shuffle=shuffle,
        partition=first,
        aux=end,
        request=request,
        count=len(maps),
        length=len(payload),
        extra=credit,
        flags=flags,
    )
    return header.pack() + payload
