"""Network attachments for sandboxes that another process starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from sluice.runtime.job_network import (
    AttachmentClient,
    AttachmentFailed,
    AttachmentServer,
    JobNetwork,
    attachment_sockets,
)


class Attachment:
    """A fake attachment whose channel is a pipe and whose namespace is an open file."""

    filter = b"\x06\x00"

    def __init__(self, namespace: int) -> None:
        self.files = {"/etc/hosts": b"127.0.0.1 localhost\n"}
        self.namespaces = (namespace,)
        self.heard: list[bytes] = []

    @contextlib.contextmanager
    def channel(self) -> Iterator[int]:
        ours, theirs = os.pipe()
        try:
            yield theirs
        finally:
            os.close(theirs)
        self.ours = ours


class Network:
    """A fake job network that gives each sandbox a new attachment and records it."""

    def __init__(self) -> None:
        self.namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.given: list[tuple[str, Attachment]] = []

    def attach(self, box: str) -> Attachment:
        attachment = Attachment(self.namespace)
        self.given.append((box, attachment))
        return attachment


async def test_a_box_gets_its_filter_files_namespaces_and_a_channel_of_its_own() -> None:
    network = Network()
    ours, theirs = attachment_sockets()
    server = AttachmentServer(cast("JobNetwork", network), ours)
    client = AttachmentClient(theirs.detach())
    for box in ("jvm", "python"):
        given = await asyncio.to_thread(client.attach, box)
        name, attachment = network.given[-1]
        assert (name, given.filter, dict(given.files)) == (box, attachment.filter, attachment.files)
        with given.channel() as channel:
            assert not os.get_inheritable(channel)
            (namespace,) = given.namespaces
            assert os.fstat(namespace).st_ino == os.fstat(network.namespace).st_ino
            os.write(channel, b"x")
        assert os.read(attachment.ours, 2) == b"x"
        assert os.read(attachment.ours, 1) == b"", "nobody else holds it"
        for each in given.descriptors:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(each)
        os.close(attachment.ours)
    server.close()
    with pytest.raises(AttachmentFailed):
        await asyncio.to_thread(client.attach, "jvm")
    client.close()
    os.close(network.namespace)


@pytest.mark.parametrize("said", [b"\xff\xfe", None], ids=["no name", "the end"])
async def test_a_client_that_sends_garbage_or_leaves_is_disconnected(said: bytes | None) -> None:
    ours, theirs = attachment_sockets()
    server = AttachmentServer(cast("Any", Network()), ours)
    if said is None:
        theirs.close()
    else:
        theirs.send(said)
    async with asyncio.timeout(10):
        while ours.fileno() >= 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
    server.close()
    if said is not None:
        theirs.settimeout(10)
        assert theirs.recv(1) == b""
        theirs.close()


async def test_a_malformed_answer_instead_of_an_attachment_is_refused() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = AttachmentClient(one.detach())
    other.send(b"nonsense")
    with pytest.raises(AttachmentFailed):
        await asyncio.to_thread(client.attach, "jvm")
    client.close()
    other.close()
