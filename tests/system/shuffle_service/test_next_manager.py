"""The next leading manager knows which worker took over what, and finishes what the last one began."""

from __future__ import annotations

from sluice.runtime.shuffle.control_plane.messages import WorkerState
from tests.integration.shuffle_manager.conftest import Service, service
from tests.waiting import until

__all__ = ["service"]

JOB, OTHER = "a" * 32, "b" * 32


async def test_the_next_manager_knows_the_successors_of_drained_workers(service: Service) -> None:
    """Even when the drained worker has been removed meanwhile and another one is still draining."""
    await service.start_manager("manager-1")
    await service.start_manager("manager-2")
    gone = await service.start_worker("w-1")
    link = await service.cluster()
    allocations = [await link.allocate(job, 3, 4) for job in (JOB, OTHER)]
    assert [each.name for each in allocations[0].workers] == ["w-1"]
    gone.kept = {JOB: {3}, OTHER: {3}}
    await service.start_worker("w-2")
    await link.drain("w-1")
    await service.until_state(link, "w-1", WorkerState.DRAINED)
    await link.release_shuffle(OTHER, 3)
    await service.stop_manager("manager-1")
    await service.until_registered("w-2")

    await service.until_state(link, "w-1", WorkerState.DRAINED)
    found = await link.locate(JOB, 3, ["w-1"])
    assert [(each.address.name, each.pushed_to) for each in found] == [("w-2", "w-1"), ("w-1", "w-1")]
    await service.stop_worker("w-1")
    await service.until_state(link, "w-1", WorkerState.LOST)
    assert [each.address.name for each in await link.locate(JOB, 3, ["w-1"])] == ["w-2"]
    assert await link.locate(OTHER, 3, ["w-1"]) == (), "what is over has no successor"
    assert [path.name for path in service.home.root.glob("shuffle-ha/*/shuffles/*")] == [f"{JOB}-3"]
    await link.release_job(JOB)
    assert list(service.home.root.glob("shuffle-ha/*/shuffles/*")) == []


async def test_the_next_manager_drains_shuffles_that_the_former_manager_placed(service: Service) -> None:
    await service.start_manager("manager-1")
    await service.start_manager("manager-2")
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    await link.allocate(JOB, 1, 4)
    await link.allocate(JOB, 2, 4)
    worker.kept[JOB] = {1, 2}
    await service.stop_manager("manager-1")
    await service.until_registered("w-1")
    await link.release_before(JOB, 2)
    await until(lambda: worker.kept[JOB] == {2}, "what this manager has never placed is released")
    await service.start_worker("w-2")
    await link.drain("w-1")
    await service.until_state(link, "w-1", WorkerState.DRAINED)
    assert set(worker.handed_over) == {(JOB, 2, "w-2")}
    assert (await link.locate(JOB, 2, ["w-1"]))[0].address.name == "w-2"
