"""The JobMaster's executors: what is launched, replaced, released, and when too many have failed."""

from __future__ import annotations

import msgspec
import pytest

from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.jobmanager.attempt.decisions.executor_failures import (
    FAILURES_COUNT_SECONDS,
    ExecutorFailures,
    FailureBudget,
)
from sluice.runtime.jobmanager.attempt.decisions.executor_pool import (
    MAX_EXECUTORS_WANTED,
    MAX_TARGETS,
    RELAUNCH_PAUSE_SECONDS,
    Decision,
    ExecutorPool,
    ExecutorState,
)
from sluice.runtime.messages import (
    GIVE_WAY_SECONDS,
    MAX_EXECUTOR_CORES,
    MAX_EXECUTOR_MEMORY_MB,
    ExecutorExit,
    ExecutorTarget,
    ExecutorTargets,
    SlotCount,
    SlotOffer,
    SlotProfile,
    SparkRegistration,
)
from sluice.runtime.rpc import InvalidArguments
from sluice.runtime.rpc.contract import gateway_of

SLOT = SlotProfile(cores=1, memory_mb=768)
NOW = 1000.0


def pool(initial: int = 2, budget: int = 3) -> ExecutorPool:
    """A pool of a job that was submitted with ``initial`` executors."""
    return ExecutorPool(initial=initial, slot_profile=SLOT, failures=ExecutorFailures(FailureBudget(budget, budget)))


def offer(number: int, taskmanager: str = "tm-1", profile: SlotProfile = SLOT) -> SlotOffer:
    """Return an offer of a slot."""
    return SlotOffer(
        taskmanager=taskmanager, host="127.0.0.1", slot=number, allocation_id=f"alloc-{number}", profile=profile
    )


def spark(app_id: str = "app-1") -> SparkRegistration:
    """Return the registration of a SparkContext."""
    return SparkRegistration(
        app_id=app_id,
        driver_url="spark://x",
        startup_conf={},
        java_options=(),
        executor_memory_mb=768,
        executor_cores=1,
    )


def targets(version: int, total: int, *, profile_id: int = 0, memory_mb: int = 768) -> ExecutorTargets:
    """Return the executor targets that the driver requests."""
    target = ExecutorTarget(resource_profile_id=profile_id, total=total, cores=1, memory_mb=memory_mb)
    return ExecutorTargets(version=version, targets=(target,))


def ended(executor_id: int, code: int = 137, *, host_lost: bool = False) -> ExecutorExit:
    """Return a report that an executor has ended."""
    return ExecutorExit(
        executor_id=executor_id, exit_code=code, by_application=False, reason=f"exit code {code}", host_lost=host_lost
    )


def running(count: int = 2) -> ExecutorPool:
    """Return a pool with ``count`` running executors."""
    started = pool(count)
    for number in range(count):
        assert started.offer(offer(number))
    started.spark_started(spark())
    started.set_targets(targets(1, count))
    for executor in started.decide(NOW).launch:
        started.launched(executor.id)
    assert [each.state for each in started.executors] == [ExecutorState.RUNNING] * count
    return started


def slots_wanted(decision: Decision) -> int:
    return sum(each.count for each in decision.wanted)


def test_slots_are_asked_for_before_the_driver_is_up_but_nothing_is_launched_in_them() -> None:
    early = pool(2)
    assert early.offer(offer(0))
    decision = early.decide(NOW)
    assert (slots_wanted(decision), decision.launch, decision.release) == (2, (), ())


def test_executors_are_numbered_from_one_and_launched_once() -> None:
    both = pool(2)
    both.offer(offer(0))
    both.offer(offer(1))
    both.spark_started(spark())
    both.set_targets(targets(1, 2))
    assert [each.id for each in both.decide(NOW).launch] == [1, 2]
    assert both.decide(NOW).launch == ()


def test_all_but_the_first_of_executors_started_at_the_same_time_give_way() -> None:
    several = pool(3)
    for number in range(3):
        several.offer(offer(number))
    several.spark_started(spark())
    several.set_targets(targets(1, 3))
    assert [(each.id, each.gives_way) for each in several.decide(NOW).launch] == [(1, False), (2, True), (3, True)]
    several.exited(ended(2), NOW)
    assert [each.gives_way for each in several.decide(NOW + GIVE_WAY_SECONDS - 1).launch] == [True]


@pytest.mark.parametrize("later", [0.0, GIVE_WAY_SECONDS + 1])
def test_a_replacement_gives_way_to_nobody_who_has_started_or_ended(later: float) -> None:
    """With ``later`` 0, the first executor, which it replaces, has just ended."""
    both = running(2)
    both.exited(ended(1 if later == 0 else 2), NOW + later)
    assert [each.gives_way for each in both.decide(NOW + later).launch] == [False]


def test_a_killed_executor_is_replaced_at_once_in_the_same_slot() -> None:
    both = running(2)
    assert both.exited(ended(1), NOW)
    (replacement,) = both.decide(NOW).launch
    assert (replacement.id, replacement.slot.allocation_id) == (3, "alloc-0")


def test_the_end_of_an_executor_is_counted_once_however_often_it_is_reported() -> None:
    both = running(2)
    assert both.exited(ended(1), NOW)
    assert not both.exited(ended(1), NOW)
    assert not both.exited(ended(99), NOW)
    assert both.failures.count == 1


def test_an_executor_that_ended_by_itself_is_replaced_after_a_pause() -> None:
    """When a driver stops, its executors end a moment before it; they must not be replaced in that moment."""
    both = running(2)
    both.exited(ended(1, 0), NOW)
    paused = both.decide(NOW)
    assert paused.launch == ()
    assert paused.retry_at == NOW + RELAUNCH_PAUSE_SECONDS
    assert len(both.decide(NOW + RELAUNCH_PAUSE_SECONDS).launch) == 1
    assert both.failures.count == 0


def test_executors_that_keep_failing_exhaust_the_budget_and_are_not_launched_any_more() -> None:
    failing = running(1)
    failing.failures.budget = FailureBudget(2, 2)
    now = NOW
    for executor_id in (1, 2, 3):
        failing.exited(ended(executor_id, 1), now)
        now += RELAUNCH_PAUSE_SECONDS
        failing.decide(now)
    assert failing.failures.exhausted
    assert failing.failures.last == "exit code 1"
    assert all(each.state is ExecutorState.EXITED for each in failing.executors)


def test_failures_by_the_jobs_own_fault_have_a_smaller_budget() -> None:
    failing = running(1)
    failing.failures.budget = FailureBudget(8, 1)
    for executor_id in (1, 2):
        report = msgspec.structs.replace(ended(executor_id, 3), by_application=True, reason="out of memory")
        failing.exited(report, NOW)
        assert failing.failures.exhausted == (executor_id == 2)
        failing.decide(NOW + RELAUNCH_PAUSE_SECONDS)
    assert failing.failures.last == "out of memory"


def test_a_failure_of_long_ago_does_not_count() -> None:
    failing = running(1)
    failing.failures.budget = FailureBudget(1, 1)
    now = NOW
    for executor_id in (1, 2, 3):
        failing.exited(ended(executor_id, 1), now)
        now += FAILURES_COUNT_SECONDS + 1
        assert not failing.failures.exhausted
        assert failing.decide(now).launch
    failing.exited(ended(4, 1), now)
    failing.decide(now + RELAUNCH_PAUSE_SECONDS)
    failing.exited(ended(5, 1), now + RELAUNCH_PAUSE_SECONDS)
    assert failing.failures.exhausted


def test_a_lost_host_and_an_executor_that_was_told_to_end_are_no_failures() -> None:
    both = running(2)
    lost = both.slots_lost(["alloc-0"])
    assert [each.id for each in lost] == [1]
    both.exited(ended(1, -1, host_lost=True), NOW)
    assert [each.id for each in both.stop([2])] == [2]
    both.exited(ended(2, 143), NOW)
    assert both.failures.count == 0


def test_a_lost_slot_is_asked_for_again() -> None:
    both = running(2)
    for executor in both.slots_lost(["alloc-0"]):
        both.exited(ended(executor.id, -1, host_lost=True), NOW)
    decision = both.decide(NOW)
    assert (slots_wanted(decision), decision.launch) == (2, ())
    both.offer(offer(7, "tm-2"))
    assert [each.slot.taskmanager for each in both.decide(NOW).launch] == ["tm-2"]


def test_a_lower_target_stops_no_executor_but_releases_slots_of_ended_ones() -> None:
    both = running(2)
    both.set_targets(targets(2, 1))
    assert both.decide(NOW).release == ()
    both.stop([2])
    assert both.decide(NOW).release == (), "it still runs in its slot"
    both.exited(ended(2, 143), NOW)
    decision = both.decide(NOW)
    assert (decision.release, slots_wanted(decision), decision.launch) == (("alloc-1",), 1, ())


def test_an_executor_killed_before_the_lower_target_arrives_is_not_replaced_after_it() -> None:
    both = running(2)
    both.stop([2])
    both.set_targets(targets(2, 1))
    both.exited(ended(2, 143), NOW)
    assert both.decide(NOW).launch == ()


def test_executor_targets_of_an_older_version_are_ignored() -> None:
    both = running(2)
    both.set_targets(targets(5, 1))
    both.set_targets(targets(4, 9))
    assert slots_wanted(both.decide(NOW)) == 2  # one wanted, two run


def test_a_new_spark_context_in_the_same_driver_gets_executors_of_its_own() -> None:
    both = running(2)
    assert [each.id for each in both.spark_started(spark("app-2"))] == [1, 2]
    both.set_targets(targets(1, 2))
    assert both.decide(NOW).launch == (), "the slots are not free yet"
    for executor_id in (1, 2):
        both.exited(ended(executor_id, 143), NOW)
    assert [each.id for each in both.decide(NOW).launch] == [3, 4]


def test_a_driver_that_reconnects_keeps_its_executors() -> None:
    both = running(2)
    assert both.spark_started(spark()) == []
    both.set_targets(targets(1, 2))
    assert both.decide(NOW).launch == ()


def test_a_slot_too_small_for_the_wanted_executors_is_released() -> None:
    large = pool(1)
    large.offer(offer(0))
    large.spark_started(spark())
    large.set_targets(targets(1, 1, memory_mb=4096))
    decision = large.decide(NOW)
    assert decision.launch == ()
    assert decision.release == ("alloc-0",)
    assert decision.wanted == (SlotCount(SlotProfile(cores=1, memory_mb=4096), 1),)


def test_more_slots_than_wanted_are_declined() -> None:
    one = pool(1)
    assert one.offer(offer(0))
    assert one.offer(offer(0)), "the same offer again is the same slot"
    assert not one.offer(offer(1))


def test_a_closed_pool_wants_no_slots_and_launches_nothing() -> None:
    both = running(2)
    assert set(both.close()) == {"alloc-0", "alloc-1"}
    assert not both.offer(offer(5))
    decision = both.decide(NOW)
    assert (decision.launch, slots_wanted(decision)) == ((), 0)


def test_a_running_executor_belongs_only_to_the_taskmanager_it_was_launched_on() -> None:
    one = running(1)
    assert one.launched_on(1, "tm-1")
    assert not one.launched_on(1, "tm-2")
    assert not one.launched_on(2, "tm-1")
    one.exited(ended(1), NOW)
    assert not one.launched_on(1, "tm-1"), "no identity for what has ended"


def test_executors_of_two_sizes_get_slots_of_exactly_their_sizes() -> None:
    large = SlotProfile(cores=1, memory_mb=4096)
    both = pool(1)
    both.offer(offer(0))
    both.spark_started(spark())
    both.set_targets(
        ExecutorTargets(
            version=1,
            targets=(
                ExecutorTarget(resource_profile_id=0, total=1, cores=1, memory_mb=768),
                ExecutorTarget(resource_profile_id=1, total=1, cores=1, memory_mb=4096),
            ),
        )
    )
    assert both.offer(offer(1, profile=large))
    assert not both.offer(offer(2, profile=large))
    assert not both.offer(offer(3, profile=SlotProfile(cores=8, memory_mb=8192)))
    decision = both.decide(NOW)
    assert [(each.target.resource_profile_id, each.slot.profile) for each in decision.launch] == [(0, SLOT), (1, large)]
    assert decision.wanted == (SlotCount(SLOT, 1), SlotCount(large, 1))


def test_idle_slots_are_released_after_a_timeout_while_there_is_no_spark_context() -> None:
    waiting = pool(2)
    waiting.idle_timeout = 50.0
    assert waiting.decide(NOW).retry_at is None
    waiting.offer(offer(0))
    assert waiting.decide(NOW).retry_at == NOW + 50
    later = waiting.decide(NOW + 50)
    assert (later.release, slots_wanted(later)) == (("alloc-0",), 0)
    assert not waiting.offer(offer(1))
    waiting.spark_started(spark())
    assert slots_wanted(waiting.decide(NOW + 60)) == 2


def test_the_number_of_executors_that_a_driver_may_request_is_bounded() -> None:
    greedy = pool(1)
    greedy.spark_started(spark())
    greedy.set_targets(targets(1, 2_147_483_647))
    assert slots_wanted(greedy.decide(NOW)) == MAX_EXECUTORS_WANTED


def test_executors_on_a_drained_taskmanager_are_replaced_elsewhere_and_their_slots_given_back() -> None:
    both = running(2)
    assert [each.id for each in both.drain(["alloc-0", "unknown"])] == [1]
    decision = both.decide(NOW)
    assert (slots_wanted(decision), decision.release, decision.launch) == (2, (), ()), "it still runs"
    assert both.offer(offer(5, "tm-2"))
    (replacement,) = both.decide(NOW).launch
    assert replacement.slot.taskmanager == "tm-2"
    both.exited(ended(1, 0), NOW)
    assert both.decide(NOW).release == ("alloc-0",)
    assert both.failures.count == 0
    assert both.decide(NOW).retry_at is None, "it ended because it was told to"


def test_an_idle_slot_of_a_drained_taskmanager_goes_back_at_once() -> None:
    early = pool(1)
    early.offer(offer(0))
    assert early.drain(["alloc-0"]) == []
    decision = early.decide(NOW)
    assert (decision.release, slots_wanted(decision)) == (("alloc-0",), 1)
    assert early.offer(offer(1, "tm-2"))


BOUNDS = {
    "resource_profile_id": (0, 2**31 - 1),
    "total": (0, 2**31 - 1),
    "cores": (1, MAX_EXECUTOR_CORES),
    "memory_mb": (1, MAX_EXECUTOR_MEMORY_MB),
}


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 1, 2**31, 2**63, 1.5, "1", None], ids=str)
@pytest.mark.parametrize("field", sorted(BOUNDS))
def test_targets_out_of_bounds_are_refused_before_they_reach_the_jobmaster(field: str, value: object) -> None:
    """The driver gets a typed error, which repeats no values."""
    method = gateway_of(JobMasterGateway).methods["set_executor_targets"]
    target = {"resource_profile_id": 0, "total": 1, "cores": 1, "memory_mb": 768, field: value}
    data = msgspec.msgpack.encode([{"version": 1, "targets": [target]}])
    least, most = BOUNDS[field]
    if isinstance(value, int) and least <= value <= most:
        (decoded,) = method.decode_arguments(data)
        assert msgspec.structs.asdict(decoded.targets[0]) == target
    else:
        with pytest.raises(InvalidArguments, match=field):
            method.decode_arguments(data)


def test_the_total_of_executors_of_all_sizes_that_a_driver_may_request_is_bounded() -> None:
    executors = pool()
    wanted = tuple(
        ExecutorTarget(resource_profile_id=number, total=2**31 - 1, cores=1, memory_mb=number + 1)
        for number in range(3 * MAX_TARGETS)
    )
    executors.set_targets(ExecutorTargets(version=1, targets=wanted))
    assert slots_wanted(executors.decide(0.0)) == MAX_EXECUTORS_WANTED
