"""Tests of the real JobMaster without a driver process.

It carries out what its state machine decides, even while others are busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.ha.errors import EntryDamaged, HaError, LeadershipLost
from sluice.runtime.jobmanager.attempt.decisions import actions
from sluice.runtime.jobmanager.errors import JobAlreadyTerminal
from sluice.runtime.jobmanager.gateways import JobMasterInternalGateway
from sluice.runtime.messages import JobState
from sluice.runtime.rpc import EndpointStopped, MailboxFull, RpcService, RpcTimeout
from sluice.runtime.spark.errors import DriverFailed
from tests.hostile import TestPki
from tests.unit.runtime.jobmanager.attempt.attempts import FakeDriver, Neighbours, job_master


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> TlsIdentity:
    return TestPki(tmp_path_factory.mktemp("pki")).process(Role.JOBMANAGER, "jm")


@pytest_asyncio.fixture
async def rpc(identity: TlsIdentity) -> AsyncIterator[RpcService]:
    service = RpcService(identity)
    yield service
    await service.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for at most 30 seconds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_driver_that_ends_without_a_result_fails_the_job(rpc: RpcService) -> None:
    driver, neighbours = FakeDriver(), Neighbours()
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: driver.running)
    driver.end("exit code 0")
    await until(lambda: "job_released" in neighbours.calls)
    (record,) = neighbours.records
    assert record.detail.state is JobState.FAILED
    assert record.detail.failure is not None
    assert "without reporting its result: exit code 0" in record.detail.failure.error


async def test_a_failed_attempt_is_handed_over_when_the_strategy_says_so(rpc: RpcService) -> None:
    driver, neighbours = FakeDriver(), Neighbours()
    neighbours.delay = 3.0
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: driver.running)
    driver.end("exit code 1")
    await until(lambda: "job_restarting" in neighbours.calls)
    assert neighbours.calls.index("release_job") < neighbours.calls.index("job_restarting"), "nothing of it is left"
    assert "job_ended" not in neighbours.calls
    assert neighbours.records[0].detail.state is JobState.RESTARTING


async def test_a_driver_that_cannot_be_started_is_a_failed_attempt(rpc: RpcService) -> None:
    driver, neighbours = FakeDriver(), Neighbours()
    driver.error = DriverFailed("no python")
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: "job_released" in neighbours.calls)
    failure = neighbours.records[0].detail.failure
    assert failure is not None
    assert "cannot be started: no python" in failure.error
    assert (driver.starts, driver.stops) == (0, [])


async def test_cancelling_ends_a_driver_that_has_not_registered_by_signals(rpc: RpcService) -> None:
    driver, neighbours = FakeDriver(), Neighbours()
    master = job_master(driver, neighbours)
    await rpc.start(master)
    await until(lambda: driver.running)
    gateway = rpc.local(JobMasterInternalGateway, master.name, token=master.token)
    await gateway.cancel()
    await until(lambda: "job_released" in neighbours.calls)
    assert neighbours.records[0].detail.state is JobState.CANCELED
    with pytest.raises(JobAlreadyTerminal):
        await gateway.cancel()


async def test_a_leader_that_stops_leaves_the_driver_to_the_next_one(rpc: RpcService) -> None:
    """Whether it stops in order or has lost leadership: only its lease ends a driver."""

    def lost() -> None:
        raise LeadershipLost("gone")

    for check in (lambda: None, lost):
        driver = FakeDriver()
        master = job_master(driver, Neighbours(), check_leadership=check)
        await rpc.start(master)
        await until(lambda driver=driver: driver.running)  # type: ignore[misc]
        await rpc.stop(master)
        assert driver.stops == []
        assert driver.running


async def test_slots_do_not_wait_for_a_result_to_be_durable(rpc: RpcService) -> None:
    driver, neighbours = FakeDriver(), Neighbours()
    neighbours.result_is_durable.clear()
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: driver.running)
    driver.end()
    await until(lambda: "release_job" in neighbours.calls)
    assert "job_ended" not in neighbours.calls
    neighbours.result_is_durable.set()
    await until(lambda: "job_released" in neighbours.calls)
    assert neighbours.calls[-3:] == ["release_job", "job_ended", "job_released"]


@pytest.mark.parametrize("method", ["attempt_failed", "job_ended", "release_job", "job_released"])
async def test_an_attempt_releases_its_slots_and_job_although_a_mailbox_is_full(rpc: RpcService, method: str) -> None:
    driver, neighbours = FakeDriver(), Neighbours(**{method: MailboxFull("10000 messages")})
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: driver.running)
    driver.end()
    await until(lambda: "job_released" in neighbours.calls)
    assert {"job_ended", "release_job"} <= set(neighbours.calls)


async def test_a_failed_attempt_ends_the_job_if_the_restart_cannot_be_decided(rpc: RpcService) -> None:
    driver, neighbours = FakeDriver(), Neighbours(attempt_failed=EntryDamaged("the history"))
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: driver.running)
    driver.end("exit code 1")
    await until(lambda: "job_released" in neighbours.calls)
    assert neighbours.records[0].detail.state is JobState.FAILED


@pytest.mark.parametrize("error", [LeadershipLost("gone"), EndpointStopped("gone")])
async def test_an_attempt_under_a_former_leader_does_not_end_the_job(rpc: RpcService, error: HaError) -> None:
    driver, neighbours = FakeDriver(), Neighbours(attempt_failed=error)
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: driver.running)
    driver.end("exit code 1")
    await until(lambda: "attempt_failed" not in neighbours.errors)
    await asyncio.sleep(0)
    assert neighbours.records == []
    assert "release_job" not in neighbours.calls


async def test_an_internal_error_of_the_jobmaster_fails_the_job(
    rpc: RpcService, caplog: pytest.LogCaptureFixture
) -> None:
    driver, neighbours = FakeDriver(), Neighbours(require_slots=RuntimeError("a bug"))
    await rpc.start(job_master(driver, neighbours))
    await until(lambda: "job_released" in neighbours.calls)
    failure = neighbours.records[0].detail.failure
    assert failure is not None
    assert failure.error == "internal error of its JobMaster: RuntimeError"
    assert "a bug" in caplog.text


async def test_an_executor_is_killed_even_if_its_taskmanager_is_busy(rpc: RpcService) -> None:
    told: list[int] = []

    async def kill(_: str, executor_id: int) -> None:
        told.append(executor_id)
        if len(told) == 1:
            raise RpcTimeout("kill_executor gave no answer in 10 s")

    master = job_master(FakeDriver(), Neighbours())
    await rpc.start(master)
    master._runner.taskmanagers["tm-2"] = cast("Any", SimpleNamespace(kill_executor=kill))
    master._runner.run(actions.KillExecutor(7, "tm-2"))
    await until(lambda: told == [7, 7])
