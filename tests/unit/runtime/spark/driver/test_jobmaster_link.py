"""The driver agent's connection to its JobMaster: order, reconnection, and the end of its patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from sluice.core.errors import PeerRefused
from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.messages import (
    BlobRef,
    DriverAssignment,
    DriverExit,
    ExecutorTarget,
    ExecutorTargets,
    JobProgress,
    KnownShuffle,
    OutputLocation,
    RunningDriver,
    ShuffleAllocation,
    SparkRegistration,
    StageTable,
    StreamingQuery,
    StreamingState,
)
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    FencingTokenMismatch,
    MailboxFull,
    MethodNotFound,
    PeerUnreachable,
)
from sluice.runtime.shuffle.control_plane.errors import NoShuffleService
from sluice.runtime.spark.driver.link.call_queue import BUSY_CALLS
from sluice.runtime.spark.driver.link.jobmaster_link import JobMasterLink, JobMasterPeer
from sluice.runtime.spark.driver.link.lease import DriverLease
from sluice.runtime.spark.driver.main import run_linked
from sluice.runtime.spark.errors import DriverFailed
from tests.waiting import until

SECRET = bytes(32)
ASSIGNMENT = DriverAssignment(
    pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1), files=(), args=(), spark_conf={},
    spark_auth_secret=SECRET.hex(), blob_host="h", blob_port=1,
)  # fmt: skip
REGISTRATION = SparkRegistration(
    app_id="a", driver_url="u", startup_conf={}, java_options=(), executor_memory_mb=1, executor_cores=1
)
DONE = DriverExit(succeeded=True, exit_code=0)
ALLOCATION = ShuffleAllocation(shuffle_number=5, workers=(), replicas=1, integrity_key=b"01234567")


def targets(version: int, total: int = 2) -> ExecutorTargets:
    wanted = ExecutorTarget(resource_profile_id=0, total=total, cores=1, memory_mb=1)
    return ExecutorTargets(version=version, targets=(wanted,))


class Peer:
    """A fake connection to a JobMaster that records the messages it receives."""

    def __init__(self, heard: list[object], errors: list[Exception], running: list[RunningDriver | None]) -> None:
        self.heard = heard
        self.errors = errors
        self.running = running
        self.replaced = False
        self.gone = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()
        self.allocating = asyncio.Event()

    @property
    def jobmaster(self) -> JobMasterGateway:
        return cast("JobMasterGateway", self)  # it has the driver's half of the methods

    async def wait_closed(self) -> None:
        await self.gone.wait()

    async def close(self) -> None:
        self.gone.set()

    async def _hear(self, message: object) -> None:
        await self.answering.wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.gone.is_set():
            raise PeerUnreachable("the connection is gone")
        self.heard.append(message)

    async def superseded(self) -> bool:
        return self.replaced

    async def register_driver(self, attempt: int, pid: int, running: RunningDriver | None) -> DriverAssignment:
        self.running.append(running)
        await self._hear(("driver", attempt, pid))
        return ASSIGNMENT

    async def renew_lease(self, attempt: int) -> None:
        await self.answering.wait()

    async def report_streaming(self, state: StreamingState) -> None:
        await self._hear(state)

    async def spark_started(self, registration: SparkRegistration) -> None:
        await self._hear(registration)

    async def set_executor_targets(self, wanted: ExecutorTargets) -> None:
        await self._hear(wanted)

    async def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        await self._hear(executor_ids)

    async def report_progress(self, progress: JobProgress) -> None:
        await self._hear(progress)

    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        await self._hear(("register", shuffle_id, partitions))
        await self.allocating.wait()
        if self.gone.is_set():
            raise PeerUnreachable("the connection is gone")
        if shuffle_id < 0:
            raise NoShuffleService("no ShuffleManager answers")
        return ALLOCATION

    async def locate_shuffle(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        await self.register_shuffle(shuffle_id, 0)
        return ()

    async def unregister_shuffle(self, shuffle_id: int) -> None:
        await self._hear(("unregister", shuffle_id))

    async def report_stages(self, stages: StageTable) -> None:
        await self._hear(stages)

    async def driver_succeeded(self) -> None:
        await self._hear("succeeded")

    async def driver_finished(self, result: DriverExit) -> None:
        await self._hear(result)


class Network:
    """A fake network that connects to peers and can be down."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.errors: list[Exception] = []
        self.running: list[RunningDriver | None] = []
        self.dial_error: Exception | None = None
        self.peers: list[Peer] = []

    async def dial(self) -> JobMasterPeer:
        if self.dial_error is not None:
            raise self.dial_error
        self.peers.append(Peer(self.heard, self.errors, self.running))
        return self.peers[-1]


@asynccontextmanager
async def linked(network: Network, patience: float = 30.0) -> AsyncIterator[JobMasterLink]:
    link = JobMasterLink(network.dial, attempt=1, pid=42, patience_seconds=patience)
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def soon(work: Awaitable[object]) -> object:
    return await asyncio.wait_for(work, 10)


async def test_the_link_registers_the_driver_first_and_then_sends_messages_in_order() -> None:
    network = Network()
    async with linked(network) as link:
        link.spark_started(REGISTRATION)
        link.set_targets(targets(1))
        link.set_targets(targets(2, 1))
        link.kill_executors((2,))
        assert await soon(link.assignment) == ASSIGNMENT
        await soon(link.finish(DONE))
    assert network.heard == [("driver", 1, 42), REGISTRATION, targets(1), targets(2, 1), (2,), DONE]


async def test_registration_and_targets_are_sent_again_after_a_reconnection() -> None:
    network = Network()
    async with linked(network) as link:
        link.spark_started(REGISTRATION)
        link.set_targets(targets(1))
        link.set_targets(targets(2))
        await until(lambda: len(network.heard) == 4)
        network.heard.clear()
        network.peers[0].gone.set()
        await until(lambda: len(network.heard) == 3)
        assert network.heard == [("driver", 1, 42), REGISTRATION, targets(2)]
        await soon(link.finish(DONE))
    assert len(network.peers) == 2


async def test_call_cut_off_by_a_lost_connection_is_made_again() -> None:
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        network.errors.append(PeerUnreachable("cut"))
        link.kill_executors((3,))
        await soon(link.finish(DONE))
    assert network.heard == [("driver", 1, 42), ("driver", 1, 42), (3,), DONE]


@pytest.mark.parametrize("knows", [True, False])
async def test_success_is_reported_before_the_end_to_jobmasters_that_know_the_method(knows: bool) -> None:
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        if not knows:
            network.errors.append(MethodNotFound("a jobmaster of the release before"))
        link.succeeded()
        await soon(link.finish(DONE))
    assert network.heard == [("driver", 1, 42), *(["succeeded"] if knows else []), DONE]


async def test_busy_jobmaster_is_asked_again() -> None:
    network = Network()
    network.errors.append(MailboxFull("busy"))
    async with linked(network) as link:
        await soon(link.finish(DONE))
    assert network.heard == [("driver", 1, 42), DONE]


async def test_waiting_progress_and_stage_tables_are_replaced_only_by_their_own_kind() -> None:
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        network.peers[0].answering.clear()
        for count in range(50):
            link.report_progress(JobProgress(tasks_total=count))
            link.report_stages(StageTable(left_out=count))
        await asyncio.sleep(0)
        network.peers[0].answering.set()
        await soon(link.finish(DONE))
    shown = [each for each in network.heard if isinstance(each, JobProgress | StageTable)]
    assert len(shown) <= 4  # at most one of each kind was on its way already
    assert shown[-2:] == [JobProgress(tasks_total=49), StageTable(left_out=49)]


async def test_progress_that_waits_is_replaced_by_newer_progress() -> None:
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        network.peers[0].answering.clear()
        for count in range(100):
            link.report_progress(JobProgress(tasks_total=count))
        await asyncio.sleep(0)
        network.peers[0].answering.set()
        await soon(link.finish(DONE))
    progress = [each for each in network.heard if isinstance(each, JobProgress)]
    assert len(progress) <= 2
    assert progress[-1].tasks_total == 99


@pytest.mark.parametrize("error", [FencingTokenMismatch("stale"), PeerRefused("someone else")], ids=["fenced", "other"])
async def test_a_foreign_or_fenced_jobmaster_ends_the_link_at_once(error: Exception) -> None:
    network = Network()
    network.errors.append(error)
    async with linked(network) as link:
        assert str(error) in str(await soon(link.lost))
        with pytest.raises(DriverFailed):
            await soon(link.finish(DONE))
    assert network.heard == []


async def test_jobmanager_that_stays_away_ends_the_link() -> None:
    network = Network()
    network.dial_error = ConnectionRefusedError("nobody there")
    async with linked(network, patience=0.05) as link:
        assert "no JobManager" in str(await soon(link.lost))


async def test_nothing_is_sent_to_an_impostor_of_the_jobmanager() -> None:
    """The leader may return elsewhere: it is looked for until the patience is over."""
    network = Network()
    network.dial_error = PeerRefused("not the jobmanager")
    async with linked(network, patience=0.05) as link:
        assert "not the jobmanager" in str(await soon(link.lost))
    assert network.heard == []


@pytest.mark.parametrize(
    "error", [EndpointNotFound("not there yet"), LeadershipLost("it stands by"), EndpointStopped("over")]
)
async def test_a_call_to_a_leader_that_does_not_serve_the_job_yet_is_repeated(error: Exception) -> None:
    network = Network()
    network.errors.append(error)
    async with linked(network) as link:
        await soon(link.finish(DONE))
    assert network.heard == [("driver", 1, 42), DONE]
    assert len(network.peers) == 2


async def test_a_new_leader_receives_the_running_state_of_the_driver() -> None:
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        link.spark_started(REGISTRATION)
        link.set_targets(targets(1))
        network.peers[0].allocating.set()
        for shuffle_id in (3, 4):
            await soon(link.register_shuffle(shuffle_id, 200))
        link.unregister_shuffle(4)
        link.kill_executors((1, 2))
        link.executor_exited(1)
        link.report_stages(StageTable(left_out=7))
        await until(lambda: StageTable(left_out=7) in network.heard)
        network.heard.clear()
        network.peers[0].gone.set()
        await soon(link.finish(DONE))
    assert network.heard == [("driver", 1, 42), REGISTRATION, targets(1), (2,), StageTable(left_out=7), DONE]
    known = KnownShuffle(shuffle_id=3, number=5, partitions=200)
    assert network.running == [
        None,
        RunningDriver(spark_auth_secret=SECRET.hex(), app_id="a", shuffles=(known,), shuffles_asked=2),
    ]
    assert SECRET.hex() not in repr(network.running)


async def test_a_driver_that_stops_for_a_savepoint_reports_that_it_is_bound_to_its_leader() -> None:
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        link.stops_streaming()
        network.peers[0].gone.set()
        await soon(link.finish(DONE))
    assert network.running[1] is not None
    assert "savepoint" in network.running[1].bound


async def test_an_older_streaming_state_is_never_sent_after_a_newer_one() -> None:
    """A state still queued when the leader disappeared would be taken for a lost checkpoint."""
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        link.spark_started(REGISTRATION)
        await until(lambda: REGISTRATION in network.heard)
        network.heard.clear()
        network.peers[0].answering.clear()
        for batch in (1, 2, 3):
            link.report_streaming(committed(batch))
        network.peers[0].gone.set()
        await soon(link.finish(DONE))
    assert [each for each in network.heard if isinstance(each, StreamingState)] == [committed(3)]


def committed(batch: int) -> StreamingState:
    query = StreamingQuery(id="q", run_id="r", name="rows", location="l", state="RUNNING", batch=batch)
    return StreamingState(queries=(query,))


async def test_an_unresponsive_leader_is_abandoned_when_another_one_leads() -> None:
    """The leader is paused: its connections stay open, and nobody answers."""
    network = Network()
    lease = DriverLease(5.0, lambda: 0.0)  # it never expires, however long this process is stopped
    link = JobMasterLink(network.dial, attempt=1, pid=42, patience_seconds=30, lease=lease)
    running = asyncio.create_task(link.run())
    await soon(link.assignment)
    network.peers[0].replaced = True
    network.peers[0].answering.clear()
    await until(lambda: len(network.peers) == 2)
    assert network.peers[0].gone.is_set()
    await soon(link.finish(DONE))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_other_calls_do_not_wait_for_a_pending_shuffle_registration() -> None:
    network = Network()
    async with linked(network) as link:
        link.spark_started(REGISTRATION)
        asked = asyncio.ensure_future(link.register_shuffle(3, 200))
        await asyncio.sleep(0)
        link.set_targets(targets(1))
        link.unregister_shuffle(2)
        await until(lambda: len(network.heard) == 5)
        assert network.heard[1:3] == [REGISTRATION, ("register", 3, 200)]
        assert not asked.done()
        network.peers[0].allocating.set()
        assert await soon(asked) == ALLOCATION


async def test_a_shuffle_registration_is_repeated_after_a_reconnection() -> None:
    network = Network()
    async with linked(network) as link:
        asked = asyncio.ensure_future(link.register_shuffle(3, 200))
        await until(lambda: ("register", 3, 200) in network.heard)
        await network.peers[0].close()
        network.peers[0].allocating.set()
        await until(lambda: len(network.peers) == 2)
        network.peers[1].allocating.set()
        assert await soon(asked) == ALLOCATION
    assert network.heard.count(("register", 3, 200)) == 2


async def test_a_failed_shuffle_registration_is_raised_to_its_caller() -> None:
    network = Network()
    async with linked(network, patience=0.2) as link:
        asked = asyncio.ensure_future(link.register_shuffle(-1, 200))
        await until(lambda: bool(network.peers))
        network.peers[0].allocating.set()
        with pytest.raises(NoShuffleService):
            await soon(asked)
        network.dial_error = PeerRefused("not ours")
        lost = asyncio.ensure_future(link.register_shuffle(1, 200))
        await network.peers[0].close()
        with pytest.raises(DriverFailed):
            await soon(lost)


class Attempt:
    """A fake attempt that, like a driver, runs until its JobMaster is lost."""

    def __init__(self, link: JobMasterLink) -> None:
        self.link = link

    async def run(self) -> DriverExit:
        await soon(self.link.lost)
        return DriverExit(succeeded=False, exit_code=-1)


class BrokenLease(DriverLease):
    """A lease that raises an unexpected error at the point ``when``."""

    def __init__(self, when: str) -> None:
        super().__init__(0)
        self.when = when

    async def keep(
        self, question: Callable[[], Awaitable[None]], superseded: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        del superseded
        if self.when == "keeping":
            raise ZeroDivisionError(self.when)
        await super().keep(question)

    async def over(self) -> None:
        if self.when == "watching":
            raise ZeroDivisionError(self.when)
        await super().over()


@pytest.mark.parametrize("when", ["dialing", "keeping", "watching"])
async def test_an_internal_error_of_the_link_ends_the_driver_and_is_reported(when: str) -> None:
    network = Network()
    network.dial_error = ZeroDivisionError(when) if when == "dialing" else None
    link = JobMasterLink(network.dial, attempt=1, pid=42, patience_seconds=30, lease=BrokenLease(when))
    with pytest.raises(DriverFailed, match=f"internal error: ZeroDivisionError: {when}"):
        await soon(run_linked(Attempt(link), link))
    assert "ZeroDivisionError" in link.lost.result()


async def test_a_lost_link_without_an_internal_error_gives_the_driver_exit() -> None:
    network = Network()
    link = JobMasterLink(network.dial, attempt=1, pid=42, patience_seconds=30)
    link.lost.set_result("another JobManager leads")
    assert not cast("DriverExit", await soon(run_linked(Attempt(link), link))).succeeded


async def test_waiting_for_room_ends_when_calls_have_been_sent() -> None:
    network = Network()
    async with linked(network) as link:
        await soon(link.assignment)
        network.peers[0].answering.clear()
        for _ in range(BUSY_CALLS):
            await soon(link.room())
            link.kill_executors((1,))
        waiting = asyncio.ensure_future(link.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        network.peers[0].answering.set()
        await soon(waiting)
    assert len(network.heard) > 1


async def test_waiting_for_room_ends_when_the_link_is_lost() -> None:
    network = Network()
    network.dial_error = PeerUnreachable("nobody there")
    async with linked(network, patience=0.05) as link:
        for _ in range(BUSY_CALLS):
            link.kill_executors((1,))
        await soon(link.room())
        assert link.lost.done()
