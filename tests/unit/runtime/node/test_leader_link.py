"""A worker process registers and reports to its leader.

It registers again when the leader is gone, refuses it or is superseded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.node.leader_link import LeaderLink
from sluice.runtime.rpc import FencingTokenMismatch, PeerUnreachable, RemotePeer, RpcTimeout

IDENTITY = SpiffeId.process("sluice.local", Role.JOBMANAGER, "jm-1")


class Peer:
    """A fake connection that stays open until the test closes it."""

    def __init__(self) -> None:
        self.identity = IDENTITY
        self.gone = asyncio.Event()

    async def wait_closed(self) -> None:
        await self.gone.wait()

    async def close(self, reason: str = "") -> None:
        del reason
        self.gone.set()


@dataclass
class Accepted:
    """A leader's answer."""

    fencing_token: bytes = b"token"
    heartbeat_interval: float = 1000.0
    heartbeat_timeout: float = 1000.0


@dataclass
class Cluster:
    """A leader that accepts every registration, and the process that registers."""

    accepted: Accepted = field(default_factory=Accepted)
    unreachable: int = 0
    another_leads: bool = False
    peers: list[Peer] = field(default_factory=list)
    refusals: list[Exception] = field(default_factory=list)
    answers: list[Exception | None] = field(default_factory=list)
    heartbeats: list[bytes] = field(default_factory=list)
    seen: list[SpiffeId | None] = field(default_factory=list)
    report_now: asyncio.Event = field(default_factory=asyncio.Event)

    async def dial(self) -> RemotePeer:
        if self.unreachable:
            self.unreachable -= 1
            raise PeerUnreachable("nobody leads")
        self.peers.append(Peer())
        return cast("RemotePeer", self.peers[-1])

    async def superseded(self, peer: RemotePeer) -> bool:
        del peer
        return self.another_leads

    async def register(self, peer: RemotePeer) -> Accepted:
        del peer
        if self.refusals:
            raise self.refusals.pop(0)
        return self.accepted

    async def heartbeat(self, peer: RemotePeer, token: bytes) -> None:
        del peer
        self.heartbeats.append(token)
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error

    async def disconnected(self) -> None:
        """Do nothing."""

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[asyncio.Task[None]]:
        link = LeaderLink(self, self, report_now=self.report_now, registered=self.seen.append)
        running: asyncio.Task[None] = asyncio.create_task(link.run())
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0.005)


async def test_a_worker_process_registers_and_reports_at_once_when_asked() -> None:
    cluster = Cluster(unreachable=1)
    async with cluster.linked():
        await eventually(lambda: cluster.heartbeats == [b"token"])
        cluster.report_now.set()
        await eventually(lambda: len(cluster.heartbeats) == 2)
        assert cluster.seen == [IDENTITY]
    assert cluster.seen == [IDENTITY, None]
    assert cluster.peers[0].gone.is_set()


async def test_a_worker_process_registers_again_after_a_broken_connection() -> None:
    cluster = Cluster()
    async with cluster.linked():
        await eventually(lambda: len(cluster.heartbeats) == 1)
        cluster.peers[0].gone.set()
        await eventually(lambda: len(cluster.heartbeats) == 2)
        assert cluster.seen == [IDENTITY, None, IDENTITY]


async def test_a_refused_registration_closes_its_connection_and_is_retried() -> None:
    cluster = Cluster(refusals=[PeerUnreachable("not now"), RpcTimeout("late")])
    async with cluster.linked():
        await eventually(lambda: len(cluster.peers) == 3)
        assert [each.gone.is_set() for each in cluster.peers] == [True, True, False]


@pytest.mark.parametrize(
    ("answer", "another_leads", "silence", "again"),
    [
        pytest.param(FencingTokenMismatch("another term"), False, 1000.0, True, id="refused"),
        pytest.param(RpcTimeout("late"), False, 1000.0, False, id="late-but-it-leads"),
        pytest.param(RpcTimeout("late"), True, 1000.0, True, id="late-and-another-leads"),
        pytest.param(RpcTimeout("late"), False, 0.0, True, id="silent-for-too-long"),
    ],
)
async def test_a_worker_process_registers_again_if_refused_superseded_or_silent_for_too_long(
    answer: Exception, another_leads: bool, silence: float, again: bool
) -> None:
    cluster = Cluster(
        accepted=Accepted(heartbeat_interval=0.01, heartbeat_timeout=silence),
        another_leads=another_leads,
        answers=[answer],
    )
    async with cluster.linked():
        await eventually(lambda: len(cluster.heartbeats) >= 3)
        assert (len(cluster.peers) > 1) is again
