"""Failing endpoints, messages without a handler, and the metrics of both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest
import pytest_asyncio

from sluice.core.metrics import exposition
from sluice.core.metrics.metric_samples import MetricsRegistry
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    RpcEndpoint,
    RpcError,
    RpcService,
    rpc,
)
from sluice.runtime.rpc.dead_letters import (
    LOG_EVERY_SECONDS,
    MAX_KINDS,
    DeadLetters,
)

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
    """An endpoint that counts the messages it has received since it was created."""

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


class Served:
    """A service that records the failures reported to it."""

    def __init__(self, identity: TlsIdentity) -> None:
        self.failures: list[tuple[str, str]] = []
        self.metrics = MetricsRegistry()
        self.service = RpcService(
            identity,
            on_failure=lambda endpoint, error: self.failures.append((endpoint.name, type(error).__name__)),
            metrics=self.metrics,
        )

    @property
    def worker(self) -> WorkerGateway:
        return self.service.local(WorkerGateway, "worker")

    async def start(self) -> Worker:
        worker = Worker()
        await self.service.start(worker)
        return worker


@pytest_asyncio.fixture
async def served(jobmanager_identity: TlsIdentity) -> AsyncIterator[Served]:
    made = Served(jobmanager_identity)
    yield made
    await made.service.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0)


async def test_a_failing_endpoint_keeps_its_state_and_reports_to_its_owner(served: Served) -> None:
    worker = await served.start()
    await served.worker.note()
    with pytest.raises(RpcError, match="for the caller"):
        await served.worker.fail_an_ask()
    assert served.failures == []  # an error of an ask goes to its caller
    await served.worker.fail_a_tell()
    assert await served.worker.count() == 1
    assert worker.stats.failures == 1
    assert served.failures == [("worker", "KeyError")]


async def test_an_error_noted_by_the_endpoint_is_counted_but_not_reported_to_the_owner(
    served: Served,
) -> None:
    worker = await served.start()
    worker.note_failure(KeyError("with one of many"))
    assert worker.stats.failures == 1
    assert served.failures == []


async def test_an_endpoint_name_is_taken_until_its_endpoint_stops(served: Served) -> None:
    worker = await served.start()
    with pytest.raises(RpcError, match="runs already"):
        await served.start()
    await served.service.stop(worker)
    await served.service.stop(worker)
    with pytest.raises(EndpointNotFound):
        await served.worker.count()
    with pytest.raises(OSError, match="cannot start"):
        await served.service.start(Worker(broken=True))
    await served.start()
    assert await served.worker.count() == 0


async def test_the_endpoint_that_started_last_stops_first(served: Served) -> None:
    diary: list[str] = []
    for name in ("first", "second"):
        await served.service.start(Worker(name, diary))
    await served.service.close()
    assert diary == ["start first", "start second", "stop second", "stop first"]


async def test_messages_that_wait_when_their_endpoint_stops_become_dead_letters(served: Served) -> None:
    worker = await served.start()
    blocked = asyncio.create_task(served.worker.block())
    await worker.inside.wait()
    await served.worker.note()
    waiting = asyncio.create_task(served.worker.count())
    await eventually(lambda: worker.stats.depth == 2)
    stopping = asyncio.create_task(served.service.stop(worker))
    await eventually(lambda: not worker.running)
    worker.gate.set()
    await asyncio.gather(stopping, blocked)
    with pytest.raises(EndpointStopped):
        await waiting
    await served.worker.note()
    assert served.service.dead_letters.counts == {("worker", "EndpointStopped"): 1, ("worker", "EndpointNotFound"): 1}


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
    assert letters.counts.total() == 501 + 2 * MAX_KINDS
    assert len(list(letters.samples())) <= MAX_KINDS + 1


async def test_prometheus_metrics_show_the_statistics_of_endpoints(served: Served) -> None:
    worker = await served.start()
    blocked = asyncio.create_task(served.worker.block())
    await worker.inside.wait()
    for _ in range(4):
        await served.worker.note()
    stats = worker.stats
    assert (stats.depth, stats.deepest, stats.capacity, stats.refused, stats.processed) == (3, 3, 3, 1, 0)
    worker.gate.set()
    await blocked
    assert await served.worker.count() == 3
    assert worker.stats.processed >= 4
    assert worker.stats.busy_seconds >= worker.stats.longest_seconds > 0
    text = exposition(served.metrics.collect())
    assert "# TYPE sluice_rpc_mailbox_depth gauge\n" in text
    assert 'sluice_rpc_refused_total{endpoint="worker"} 1.0\n' in text
    assert 'sluice_rpc_dead_letters_total{endpoint="worker",reason="MailboxFull"} 1.0\n' in text
    await served.service.close()
    assert exposition(served.metrics.collect()) == ""


async def test_an_endpoint_whose_failure_handler_fails_keeps_running(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Worker):
        def on_failure(self, error: BaseException) -> None:
            raise ValueError("and another") from error

    await served.service.start(Clumsy())
    await served.worker.fail_a_tell()
    await served.worker.note()
    assert await served.worker.count() == 1
    assert "failed while handling a failure" in caplog.text
