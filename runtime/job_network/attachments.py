"""Attachments in a network for boxes that another process starts: a driver's agent, whose TaskManager has the network.

They share a pair of sockets. The agent says what a box is called; the answer has what the box needs: files and a
filter, and as descriptors its channel to the broker and the namespaces that it enters.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sluice.core import SluiceError
from sluice.runtime.sandbox import NetworkAttachment

MAX_REQUEST_BYTES = 64
MAX_ANSWER_BYTES = 1 << 17
MAX_DESCRIPTORS = 8
ANSWER_SECONDS = 30.0


class AttachmentFailed(SluiceError):
    """A box cannot have its place in the job's network."""


class _Answer(msgspec.Struct, frozen=True):
    filter: bytes
    files: dict[str, bytes]


def attachment_sockets() -> tuple[socket.socket, socket.socket]:
    """The end of who has the network, and that of who starts its boxes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


class Attachable(Protocol):
    """A network of boxes."""

    def attach(self, box: str) -> NetworkAttachment:
        """An attachment for one start of a box, called ``box`` in rows."""


class AttachmentServer:
    """The end of who has the network; it serves until it is closed, or the other end is.

    Args:
        network: the driver's, or that of one that waits.
        end: of :func:`attachment_sockets`.
    """

    def __init__(self, network: Attachable, end: socket.socket) -> None:
        self._network = network
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._give)

    def _give(self) -> None:
        try:
            box = self._end.recv(MAX_REQUEST_BYTES).decode()
            if box:
                attachment = self._network.attach(box)
                answer = msgspec.msgpack.encode(_Answer(attachment.filter, dict(attachment.files)))
                with attachment.channel() as channel:
                    socket.send_fds(self._end, [answer], [channel, *attachment.namespaces])
                return
        except BlockingIOError:
            return
        except (OSError, UnicodeDecodeError):
            pass
        self.close()

    def close(self) -> None:
        """No more attachments; may be called again."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._end.close()


@dataclass(frozen=True, slots=True)
class ReceivedAttachment:
    """An attachment for one start of one box."""

    filter: bytes
    files: Mapping[str, bytes]
    descriptors: tuple[int, ...]

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces to enter."""
        return self.descriptors[1:]

    @contextlib.contextmanager
    def channel(self) -> Iterator[int]:
        """The box's end of a channel to the broker; with it everything that was given is closed."""
        try:
            yield self.descriptors[0]
        finally:
            for each in self.descriptors:
                os.close(each)


class AttachmentClient:
    """The end of who starts boxes. It may be used from any thread.

    Args:
        end: inherited descriptor of the socket; nothing that this process starts inherits it.
    """

    def __init__(self, end: int) -> None:
        os.set_inheritable(end, False)
        self._end = socket.socket(fileno=end)
        self._end.settimeout(ANSWER_SECONDS)
        self._lock = threading.Lock()

    def close(self) -> None:
        """No more attachments are wanted."""
        self._end.close()

    def attach(self, box: str) -> ReceivedAttachment:
        """An attachment for one start of a box, called ``box`` in rows.

        Raises:
            AttachmentFailed: the TaskManager gives none (any more).
        """
        with self._lock:
            try:
                self._end.send(box.encode())
                data, fds, _, _ = socket.recv_fds(self._end, MAX_ANSWER_BYTES, MAX_DESCRIPTORS)
            except OSError as error:
                raise AttachmentFailed(f"the TaskManager gives {box} no network: {error}") from error
        try:
            answer = msgspec.msgpack.decode(data, type=_Answer)
        except msgspec.DecodeError as error:
            for each in fds:
                os.close(each)
            raise AttachmentFailed(f"the TaskManager gives {box} no network") from error
        for each in fds:
            os.set_inheritable(each, False)
        return ReceivedAttachment(answer.filter, answer.files, tuple(fds))
