"""A TaskManager without a JobManager ends its executors; if it cannot, it ends itself."""

from __future__ import annotations

import asyncio

import pytest

from sluice.runtime.messages import SlotProfile, SlotReport, TaskManagerRegistration
from sluice.runtime.node.leader_link import LeaderLink
from sluice.runtime.rpc import PeerUnreachable, RemotePeer
from sluice.runtime.taskmanager.jobmanager_link import RegisteringTaskManager

REGISTRATION = TaskManagerRegistration(
    name="tm", host="127.0.0.1", slots=1, profile=SlotProfile(cores=1, memory_mb=1), python="", version=""
)


class NoLeader:
    """A fake discovery that finds no leader."""

    async def dial(self) -> RemotePeer:
        raise PeerUnreachable("nobody leads")

    async def superseded(self, peer: RemotePeer) -> bool:
        raise NotImplementedError


class Executors:
    """The fake executors of a TaskManager; with ``error`` they cannot be ended."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.ended = asyncio.Event()

    def attach(self, peer: RemotePeer) -> None:
        raise NotImplementedError

    def report(self) -> SlotReport:
        raise NotImplementedError

    def offer_held(self) -> None:
        raise NotImplementedError

    async def reset(self) -> None:
        if self.error is not None:
            raise self.error
        self.ended.set()


def link(executors: Executors) -> LeaderLink:
    return LeaderLink(NoLeader(), RegisteringTaskManager(executors, REGISTRATION, fence_after=0.01))


async def test_executors_are_ended_when_no_jobmanager_is_there_for_too_long() -> None:
    executors = Executors()
    running = asyncio.create_task(link(executors).run())
    await asyncio.wait_for(executors.ended.wait(), 10)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_executors_that_cannot_be_ended_end_the_taskmanager() -> None:
    with pytest.raises(OSError, match="no"):
        await asyncio.wait_for(link(Executors(OSError("no"))).run(), 10)
