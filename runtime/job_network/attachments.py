"""Network attachments for sandboxes that another process starts: the TaskManager has the network of a driver's agent.

The two processes share a socket pair. The agent sends the name of a sandbox. The answer contains the files and the
filter that the sandbox needs and, as descriptors, its channel to the broker and the namespaces that it enters.
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
    """A sandbox cannot be attached to the job's network."""


class _Answer(msgspec.Struct, frozen=True):
    filter: bytes
    files: dict[str, bytes]


def attachment_sockets() -> tuple[socket.socket, socket.socket]:
    """A socket pair: the end for the owner of the network, and the end for the process that starts its sandboxes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


class Attachable(Protocol):
    """A network to which sandboxes can be attached."""

    def attach(self, box: str) -> NetworkAttachment:
        """An attachment for one start of a sandbox; the journal calls it ``box``."""


class AttachmentServer:
    """Hands out attachments for the owner of the network, until either end is closed.


    Args:
        network: the driver's network, or that of a driver agent that waits.
        end: the first socket of :func:`attachment_sockets`.
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
        """Hand out no more attachments. Idempotent."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._end.close()


@dataclass(frozen=True, slots=True)
class ReceivedAttachment:
    """An attachment for one start of one sandbox."""

    filter: bytes
    files: Mapping[str, bytes]
    descriptors: tuple[int, ...]

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces to enter."""
        return self.descriptors[1:]

    @contextlib.contextmanager
    def channel(self) -> Iterator[int]:
        """The sandbox's end of a channel to the broker. All descriptors are closed at the end of the context."""
        try:
            yield self.descriptors[0]
        finally:
            for each in self.descriptors:
                os.close(each)


class AttachmentClient:
    """Requests attachments for the process that starts the sandboxes. Thread-safe.


    Args:
        end: the inherited descriptor of the socket. No child of this process inherits it.
    """

    def __init__(self, end: int) -> None:
        os.set_inheritable(end, False)
        self._end = socket.socket(fileno=end)
        self._end.settimeout(ANSWER_SECONDS)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the socket: no more attachments are needed."""
        self._end.close()

    def attach(self, box: str) -> ReceivedAttachment:
        """An attachment for one start of a sandbox; the journal calls it ``box``.


        Raises:
            AttachmentFailed: the TaskManager does not, or no longer, hand out attachments.
        """
        with self._lock:
            try:
                self._end.send(box.encode())
                data, fds, _, _ = socket.recv_fds(self._end, MAX_ANSWER_BYTES, MAX_DESCRIPTORS)
            except OSError as error:
                raise AttachmentFailed(f"the TaskManager did not give {box} a network: {error}") from error
        try:
            answer = msgspec.msgpack.decode(data, type=_Answer)
        except msgspec.DecodeError as error:
            for each in fds:
                os.close(each)
            raise AttachmentFailed(f"the TaskManager did not give {box} a network: the answer is malformed") from error
        for each in fds:
            os.set_inheritable(each, False)
        return ReceivedAttachment(answer.filter, answer.files, tuple(fds))
