"""Where the processes of one job listen for each other."""

from __future__ import annotations

from sluice.core import ANY_PORT
from sluice.runtime.jobmanager.attempt.decisions.executor_pool import Executor, ExecutorState
from sluice.runtime.jobmanager.attempt.listeners import JobListeners
from sluice.runtime.messages import ExecutorTarget, SlotOffer, SlotProfile

SIZE = SlotProfile(cores=1, memory_mb=768)
TARGET = ExecutorTarget(resource_profile_id=0, total=1, cores=1, memory_mb=768)


def slot(host: str) -> SlotOffer:
    return SlotOffer(taskmanager=host, host=host, slot=0, allocation_id=host, profile=SIZE)


class Attempt:
    """The JobMaster's knowledge of its processes."""

    def __init__(self) -> None:
        self.executors = [Executor(number, slot(f"host-{number}"), TARGET, 0) for number in (1, 2)]
        self.driver: SlotOffer | None = None
        self.listeners = JobListeners(lambda: self.executors, lambda: self.driver)


def test_listeners_are_found_by_the_hosts_of_slots_and_the_ports_of_their_processes() -> None:
    attempt = Attempt()
    attempt.listeners.driver((40000, 40001))
    attempt.listeners.executor(1, (40000,))
    assert attempt.listeners.on(40000) == ("host-1",), "the driver's slot is not known yet"
    attempt.driver = slot("host-d")
    assert attempt.listeners.on(40000) == ("host-d", "host-1")
    assert attempt.listeners.on(40001, ("worker",)) == ("worker", "host-d")
    assert attempt.listeners.on(40002) == ()
    assert attempt.listeners.on(ANY_PORT, ("worker",)) == ("worker", "host-d", "host-1")


def test_an_ended_executor_has_no_listeners_and_a_stopping_one_still_has() -> None:
    attempt = Attempt()
    for each in attempt.executors:
        attempt.listeners.executor(each.id, (40000,))
    attempt.executors[0].state, attempt.executors[1].state = ExecutorState.EXITED, ExecutorState.STOPPING
    assert attempt.listeners.on(40000) == ("host-2",)
    attempt.executors.append(Executor(3, slot("host-3"), TARGET, 0))
    attempt.listeners.executor(3, (40000,))
    assert set(attempt.listeners._of_executors) == {2, 3}, "those that are gone are forgotten"


def test_ports_of_an_unknown_executor_are_ignored() -> None:
    attempt = Attempt()
    attempt.listeners.executor(9, (40000,))
    assert attempt.listeners.on(40000) == ()
