"""Supervision: what becomes of endpoints that fail, who is told of deaths, dead letters, and figures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest
import pytest_asyncio

from sluice.core.metric_exposition import MetricsRegistry
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.rpc import (
    Directive,
    EndpointNotFound,
    EndpointRestarting,
    EndpointStopped,
    RpcEndpoint,
    RpcError,
    RpcService,
    Strategy,
    Terminated,
    rpc,
)
from sluice.runtime.rpc.dead_letters import (
    LOG_EVERY_SECONDS,
    MAX_KEPT,
    MAX_KINDS,
    DeadLetters,
)
from sluice.runtime.rpc.guardian import Guardian
from sluice.runtime.rpc.supervision import Restarts, always

OWN = frozenset({Role.JOBMANAGER})


class WorkerGateway(Protocol):
    @rpc(allow=OWN)
    async def count(self) -> int: ...

    @rpc(allow=OWN)
    async def fail_an_ask(self) -> None: ...

    @rpc(allow=OWN, oneway=True)
    async def fail_a_tell(self) -> None: ...

    @rpc(allow=OWN, oneway=True)
    async def note(self) -> None: ...

    @rpc(allow=OWN)
    async def block(self) -> None: ...


class Worker(RpcEndpoint):
    """Counts what it is told since it was made."""

    def __init__(self, name: str = "worker", diary: list[str] | None = None, *, broken: bool = False) -> None:
        super().__init__(name, WorkerGateway, mailbox_capacity=3)
        self.diary = [] if diary is None else diary
        self.broken = broken
        self.notes = 0
        self.gate = asyncio.Event()
        self.inside = asyncio.Event()

    async def on_start(self) -> None:
        if self.broken:
            raise OSError("cannot start")
        self.diary.append(f"start {self.name}")

    async def on_stop(self) -> None:
        self.diary.append(f"stop {self.name}")

    async def count(self) -> int:
        return self.notes

    async def fail_an_ask(self) -> None:
        raise KeyError("for the caller")

    async def fail_a_tell(self) -> None:
        raise KeyError("for nobody")

    async def note(self) -> None:
        self.notes += 1

    async def block(self) -> None:
        self.inside.set()
        await self.gate.wait()


class Sleeper:
    """Pauses that end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self.go.wait()


class Supervised:
    """A service whose guardian neither sleeps nor looks at a real clock."""

    def __init__(self, identity: TlsIdentity) -> None:
        self.fatal: list[tuple[str, str]] = []
        self.metrics = MetricsRegistry()
        self.service = RpcService(
            identity,
            on_fatal=lambda endpoint, error: self.fatal.append((endpoint.name, type(error).__name__)),
            metrics=self.metrics,
        )
        self.now = 0.0
        self.sleeper = Sleeper()
        self.service.guardian = Guardian(
            self.service._launch,
            self.service._terminate,
            self.service._fatal,
            clock=lambda: self.now,
            sleep=self.sleeper,
        )
        self.diary: list[str] = []

    @property
    def worker(self) -> WorkerGateway:
        return self.service.local(WorkerGateway, "worker")

    def make(self) -> Worker:
        return Worker(diary=self.diary)

    async def start(self, directive: Directive, *, max_restarts: int = 3, parent: RpcEndpoint | None = None) -> Worker:
        worker = self.make()
        strategy = Strategy(always(directive), first_pause=1.0, longest_pause=3.0, max_restarts=max_restarts)
        await self.service.start(worker, strategy=strategy, make=self.make, parent=parent)
        return worker

    def starts(self) -> int:
        return self.diary.count("start worker")


@pytest_asyncio.fixture
async def supervised(jobmanager_identity: TlsIdentity) -> AsyncIterator[Supervised]:
    made = Supervised(jobmanager_identity)
    yield made
    made.sleeper.go.set()
    await made.service.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0)


async def test_resume_keeps_state_and_an_error_of_an_ask_is_no_failure(supervised: Supervised) -> None:
    worker = await supervised.start(Directive.RESUME)
    await supervised.worker.note()
    with pytest.raises(RpcError, match="for the caller"):
        await supervised.worker.fail_an_ask()
    await supervised.worker.fail_a_tell()
    assert await supervised.worker.count() == 1
    assert worker.stats.failures == 1
    assert supervised.diary == ["start worker"]


async def test_restart_makes_a_new_one_after_a_pause_that_grows(supervised: Supervised) -> None:
    await supervised.start(Directive.RESTART)
    for expected in (1, 2, 3):
        await supervised.worker.note()
        await supervised.worker.fail_a_tell()
        await eventually(lambda: supervised.starts() == expected + 1)  # noqa: B023  # awaited within the turn
        await eventually(lambda: supervised.service.stats() != ())
        assert await supervised.worker.count() == 0
    assert supervised.sleeper.asked == [1.0, 2.0, 3.0]
    assert supervised.service.guardian.restarts() == {"worker": 3}
    assert supervised.fatal == []


async def test_while_it_is_restarted_callers_are_told_to_come_back(supervised: Supervised) -> None:
    await supervised.start(Directive.RESTART)
    supervised.sleeper.go.clear()
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.sleeper.asked != [])
    with pytest.raises(EndpointRestarting):
        await supervised.worker.count()
    supervised.sleeper.go.set()
    await eventually(lambda: supervised.starts() == 2)
    assert await supervised.worker.count() == 0


async def test_too_many_restarts_are_escalated_to_the_owner_of_the_process(supervised: Supervised) -> None:
    await supervised.start(Directive.RESTART, max_restarts=2)
    for number in (2, 3):
        await supervised.worker.fail_a_tell()
        await eventually(lambda: supervised.starts() == number)  # noqa: B023  # awaited within the turn
        await eventually(lambda: supervised.service.stats() != ())
    assert supervised.fatal == []
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.fatal == [("worker", "KeyError")])
    assert supervised.starts() == 3


async def test_restarts_long_ago_do_not_count(supervised: Supervised) -> None:
    await supervised.start(Directive.RESTART, max_restarts=1)
    for number in (2, 3, 4):
        await supervised.worker.fail_a_tell()
        await eventually(lambda: supervised.starts() == number)  # noqa: B023  # awaited within the turn
        await eventually(lambda: supervised.service.stats() != ())
        supervised.now += 61.0
    assert supervised.sleeper.asked == [1.0, 1.0, 1.0]
    assert supervised.fatal == []


async def test_a_successor_that_does_not_start_is_a_failure_again(supervised: Supervised) -> None:
    worker = supervised.make()
    made: list[Worker] = []

    def make() -> Worker:
        made.append(Worker(diary=supervised.diary, broken=len(made) < 2))
        return made[-1]

    await supervised.service.start(worker, strategy=Strategy(max_restarts=5), make=make)
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.starts() == 2)
    assert len(made) == 3


async def test_without_a_maker_restart_is_escalation(supervised: Supervised) -> None:
    await supervised.service.start(supervised.make(), strategy=Strategy())
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.fatal == [("worker", "KeyError")])


async def test_a_strategy_that_fails_itself_escalates(supervised: Supervised) -> None:
    def decide(error: BaseException) -> Directive:
        raise ValueError(f"undecided about {error}")

    await supervised.service.start(supervised.make(), strategy=Strategy(decide))
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.fatal == [("worker", "KeyError")])


async def test_stop_ends_it_for_good_and_tells_who_watches(supervised: Supervised) -> None:
    watcher = Worker("watcher")
    await supervised.service.start(watcher)
    await supervised.start(Directive.STOP)
    told: list[Terminated] = []
    watcher.watch("worker", told.append)
    watcher.watch("worker", told.append)()  # and changes its mind
    await supervised.worker.fail_a_tell()
    await eventually(lambda: told != [])
    assert told[0].name == "worker"
    assert isinstance(told[0].error, KeyError)
    assert len(told) == 1
    with pytest.raises(EndpointNotFound):
        await supervised.worker.count()


async def test_a_restart_is_no_death_and_who_never_was_is_dead(supervised: Supervised) -> None:
    watcher = Worker("watcher")
    await supervised.service.start(watcher)
    worker = await supervised.start(Directive.RESTART)
    told: list[Terminated] = []
    watcher.watch("worker", told.append)
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.starts() == 2)
    await eventually(lambda: supervised.service.stats()[-1].name == "worker")
    watcher.watch("nobody", told.append)
    await eventually(lambda: told == [Terminated("nobody")])
    await supervised.service.stop(worker)  # the one that failed is not the one that runs
    assert await supervised.worker.count() == 0
    await supervised.service.stop("worker")
    await eventually(lambda: told == [Terminated("nobody"), Terminated("worker")])


async def test_children_stop_before_their_parent_and_with_it(supervised: Supervised) -> None:
    parent = Worker("parent", supervised.diary)
    await supervised.service.start(parent)
    await supervised.start(Directive.RESUME, parent=parent)
    await supervised.service.stop(parent)
    assert supervised.diary == ["start parent", "start worker", "stop worker", "stop parent"]
    with pytest.raises(RpcError, match="does not run"):
        await supervised.service.start(supervised.make(), parent=parent)


async def test_an_escalated_failure_is_the_parents(supervised: Supervised) -> None:
    def make_parent() -> Worker:
        return Worker("parent", supervised.diary)

    parent = make_parent()
    await supervised.service.start(parent, strategy=Strategy(), make=make_parent)
    await supervised.start(Directive.ESCALATE, parent=parent)
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.diary.count("start parent") == 2)
    assert supervised.diary[:5] == ["start parent", "start worker", "stop worker", "stop parent", "start parent"]
    with pytest.raises(EndpointNotFound):  # whoever restarts makes its children anew
        await supervised.worker.count()
    assert supervised.fatal == []


async def test_failures_while_it_is_treated_already_change_nothing(supervised: Supervised) -> None:
    worker = await supervised.start(Directive.RESTART)
    supervised.sleeper.go.clear()
    for _ in range(3):
        supervised.service.endpoint_failed(worker, KeyError("again"))
    await eventually(lambda: supervised.sleeper.asked != [])
    supervised.service.endpoint_failed(worker, KeyError("still"))
    supervised.sleeper.go.set()
    await eventually(lambda: supervised.starts() == 2)
    assert supervised.sleeper.asked == [1.0]


@pytest.mark.parametrize("everything", [False, True])
async def test_stopping_in_the_pause_before_a_restart_is_final(supervised: Supervised, everything: bool) -> None:
    await supervised.start(Directive.RESTART)
    supervised.sleeper.go.clear()
    await supervised.worker.fail_a_tell()
    await eventually(lambda: supervised.sleeper.asked != [])
    if everything:
        await supervised.service.close()
    else:
        await supervised.service.stop("worker")
        with pytest.raises(EndpointNotFound):
            await supervised.worker.count()
    supervised.sleeper.go.set()
    await asyncio.sleep(0)
    assert supervised.starts() == 1


def test_the_pause_is_bounded_and_begins_anew_after_a_quiet_time() -> None:
    now = [0.0]
    restarts = Restarts(Strategy(max_restarts=100, longest_pause=0.5), clock=lambda: now[0])
    assert [restarts.next_pause() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    now[0] = 60.5
    assert restarts.next_pause() == 0.1
    assert restarts.total == 6


async def test_what_waits_when_an_endpoint_stops_is_a_dead_letter(supervised: Supervised) -> None:
    worker = await supervised.start(Directive.RESUME)
    blocked = asyncio.create_task(supervised.worker.block())
    await worker.inside.wait()
    await supervised.worker.note()
    waiting = asyncio.create_task(supervised.worker.count())
    await eventually(lambda: worker.mailbox_depth == 2)
    stopping = asyncio.create_task(supervised.service.stop(worker))
    await eventually(lambda: not worker.running)
    worker.gate.set()
    await asyncio.gather(stopping, blocked)
    with pytest.raises(EndpointStopped):
        await waiting
    await supervised.worker.note()
    reasons = [(letter.method, letter.reason) for letter in supervised.service.dead_letters.latest]
    assert reasons == [("note", "EndpointStopped"), ("note", "EndpointNotFound")]


def test_dead_letters_are_bounded_in_memory_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    letters = DeadLetters(clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(500):
            letters.add("here", "go", "me", "MailboxFull")
        now[0] += LOG_EVERY_SECONDS
        letters.add("here", "go", "me", "MailboxFull")
    assert len(caplog.records) == 2
    assert "499 more" in caplog.records[1].getMessage()
    for number in range(2 * MAX_KINDS):
        letters.add(f"invented-{number}", "go", "me", "EndpointNotFound")
    assert len(letters.latest) == MAX_KEPT
    assert letters.total == 501 + 2 * MAX_KINDS
    assert len(list(letters.samples())) <= MAX_KINDS + 1


async def test_figures_of_endpoints_are_shown_to_prometheus(supervised: Supervised) -> None:
    worker = await supervised.start(Directive.RESUME)
    blocked = asyncio.create_task(supervised.worker.block())
    await worker.inside.wait()
    for _ in range(4):
        await supervised.worker.note()
    stats = worker.stats
    assert (stats.depth, stats.deepest, stats.capacity, stats.refused, stats.processed) == (3, 3, 3, 1, 0)
    worker.gate.set()
    await blocked
    assert await supervised.worker.count() == 3
    assert worker.stats.processed >= 4
    assert worker.stats.busy_seconds >= worker.stats.longest_seconds > 0
    text = supervised.metrics.render()
    assert "# TYPE sluice_rpc_mailbox_depth gauge\n" in text
    assert 'sluice_rpc_refused_total{endpoint="worker"} 1\n' in text
    assert 'sluice_rpc_dead_letters_total{endpoint="worker",reason="MailboxFull"} 1\n' in text
    await supervised.service.close()
    assert supervised.metrics.render() == ""


async def test_who_fails_while_dealing_with_a_failure_goes_on_all_the_same(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Worker):
        def on_failure(self, error: BaseException) -> None:
            raise ValueError("and another") from error

    await supervised.service.start(Clumsy())
    await supervised.worker.fail_a_tell()
    await supervised.worker.note()
    assert await supervised.worker.count() == 1
    assert "failed while it dealt with a failure" in caplog.text
