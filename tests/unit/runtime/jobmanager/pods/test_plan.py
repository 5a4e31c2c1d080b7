"""Which pods are made and which are deleted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings, strategies as st

from sluice.runtime.jobmanager.gateways import ProvisionView
from sluice.runtime.jobmanager.pods.observed_pod import ObservedPod, Phase
from sluice.runtime.jobmanager.pods.plan import (
    LONGEST_PAUSE_SECONDS,
    MAX_MADE_AT_ONCE,
    SURPLUS_SECONDS,
    PodDecision,
    PodLimits,
    PodPlan,
)

NOW = 1000.0
MOST = 4


def pod(name: str, phase: Phase = Phase.RUNNING, **more: object) -> ObservedPod:
    """Return a pod of the current term."""
    found = ObservedPod(name=name, uid=f"uid-{name}", version="1", epoch=3, phase=phase)
    return replace(found, **more)  # type: ignore[arg-type]  # fields by name


def view(wanted: int, *registered: str, draining: tuple[str, ...] = ()) -> ProvisionView:
    """Return the ResourceManager's view of what is needed."""
    return ProvisionView(wanted=wanted, registered=frozenset(registered), draining=frozenset(draining))


def plan() -> PodPlan:
    """Return a plan that allows at most ``MOST`` (four) pods."""
    return PodPlan(PodLimits(MOST, 300.0))


def deleted(decision: PodDecision) -> list[str]:
    """Return the names of the pods to delete."""
    return [each.name for each in decision.delete]


def test_missing_pods_are_created_once() -> None:
    some = plan()
    assert some.decide([], view(2), NOW).create == 2
    starting = [pod("a", Phase.PENDING), pod("b", Phase.PENDING)]
    assert some.decide(starting, view(2), NOW + 1).create == 0
    assert some.decide(starting, view(3), NOW + 2).create == 1


def test_no_more_pods_are_created_than_the_limits_allow() -> None:
    assert plan().decide([], view(99), NOW).create == MOST
    full = plan().decide([pod(each) for each in "abcd"], view(9, *"abcd"), NOW)
    assert full.create == 0
    assert "as many as there may be" in full.note
    assert PodPlan(PodLimits(1000, 300.0)).decide([], view(999), NOW).create == MAX_MADE_AT_ONCE


def test_a_draining_pod_is_replaced_and_not_deleted() -> None:
    decision = plan().decide([pod("a")], view(1, "a", draining=("a",)), NOW)
    assert (decision.create, decision.delete) == (1, ())


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED])
def test_a_pod_that_has_ended_is_deleted(phase: Phase) -> None:
    assert deleted(plan().decide([pod("a", phase)], view(0), NOW)) == ["a"]
    assert deleted(plan().decide([pod("a", phase, deleting=True)], view(0), NOW)) == []


def test_surplus_pods_are_deleted_after_a_while_if_pending_and_kept_if_running() -> None:
    pods = [
        pod("old", Phase.PENDING, epoch=1),
        pod("new", Phase.PENDING),
        pod("runs", epoch=1),
        pod("serves"),
    ]
    some = plan()
    assert deleted(some.decide(pods, view(3, "serves"), NOW)) == []
    assert deleted(some.decide(pods, view(3, "serves"), NOW + SURPLUS_SECONDS)) == ["old"]
    assert deleted(some.decide(pods, view(0, "serves"), NOW + SURPLUS_SECONDS + 1)) == ["old", "new"]


def test_a_new_leader_takes_over_the_pods_of_earlier_leaders() -> None:
    decision = plan().decide([pod("a", epoch=2), pod("b", epoch=1)], view(2), NOW)
    assert (decision.create, decision.delete) == (0, ())


def test_pauses_grow_with_each_failed_pod_until_a_pod_registers() -> None:
    some, now, pauses = plan(), NOW, []
    for number in range(9):
        broken = pod(f"p{number}", Phase.FAILED, end="OOMKilled, exit code 137")
        decision = some.decide([broken], view(1), now)
        assert decision.create == 0
        assert decision.note == f"pod p{number} failed: OOMKilled, exit code 137"
        begun = now
        while not some.decide([], view(1), now).create:
            now += 0.5
        pauses.append(now - begun)
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    some.decide([pod("good")], view(1, "good"), now)
    assert some.decide([], view(1), now).create == 1


def test_a_failed_pod_counts_as_one_failure_however_long_its_deletion_takes() -> None:
    some = plan()
    broken = pod("p", Phase.FAILED, end="Error, exit code 1")
    for second in range(30):
        some.decide([broken], view(1), NOW + second / 100)
    assert some.decide([broken], view(1), NOW + 1).create == 1


def test_a_running_pod_that_does_not_register_is_replaced() -> None:
    some = plan()
    assert some.decide([pod("a")], view(1), NOW).delete == ()
    decision = some.decide([pod("a")], view(1), NOW + 300)
    assert deleted(decision) == ["a"]
    assert "did not register" in some.decide([], view(1), NOW + 300).note


def test_a_drained_pod_that_exits_is_not_a_failure() -> None:
    """Kubernetes reports its phase as Failed, as its exit code is not 0."""
    some = plan()
    left = some.decide([pod("a", Phase.FAILED)], view(1), NOW)
    assert (deleted(left), left.create, left.note) == (["a"], 1, "")


@pytest.mark.parametrize("why", ["Unschedulable: 0/3 nodes are available", "ErrImagePull: not found"])
def test_the_note_says_why_a_pod_does_not_start(why: str) -> None:
    decision = plan().decide([pod("a", Phase.PENDING, obstacle=why)], view(1), NOW)
    assert decision.note == f"pod a does not start: {why}"
    assert not decision.settled


def test_a_refused_creation_is_reported_and_retried_after_a_pause() -> None:
    some = plan()
    some.refused("exceeded quota: compute", NOW)
    decision = some.decide([], view(1), NOW)
    assert (decision.create, decision.note) == (0, "exceeded quota: compute")
    assert some.decide([], view(1), NOW + 1).create == 1
    assert some.decide([], view(0), NOW + 1).note == ""


def test_a_plan_is_settled_only_while_no_pod_starts_or_drains() -> None:
    assert plan().decide([pod("a")], view(1, "a"), NOW).settled
    assert plan().decide([], view(0), NOW).settled
    assert not plan().decide([pod("a")], view(1, "a", draining=("a",)), NOW).settled


@dataclass
class Cluster:
    """A simulated Kubernetes that carries out decisions, and pods to which anything can happen."""

    plan: PodPlan = field(default_factory=plan)
    pods: dict[str, ObservedPod] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    now: float = NOW

    def look(self, wanted: int) -> PodDecision:
        """Run one round of the provider."""
        decision = self.plan.decide(list(self.pods.values()), view(wanted, *self.registered), self.now)
        for each in decision.delete:
            assert each.ended or each.name not in self.registered, "a TaskManager at work is never deleted"
            del self.pods[each.name]
        for _ in range(decision.create):
            name = f"p{next(self.numbers)}"
            self.pods[name] = pod(name, Phase.PENDING)
        assert sum(each.alive for each in self.pods.values()) <= MOST
        return decision

    def happen(self, what: str, index: int) -> None:
        """Apply an event to one of the pods."""
        names = sorted(self.pods)
        if not names:
            return
        name = names[index % len(names)]
        found = self.pods[name]
        if what == "run" and found.phase is Phase.PENDING:
            self.pods[name] = replace(found, phase=Phase.RUNNING)
        elif what == "register" and found.phase is Phase.RUNNING:
            self.registered.add(name)
        elif what == "fail":
            self.pods[name] = replace(found, phase=Phase.FAILED)
            self.registered.discard(name)
        elif what == "vanish":
            del self.pods[name]
            self.registered.discard(name)


EVENTS = st.tuples(
    st.sampled_from(["run", "register", "fail", "vanish"]),
    st.integers(0, 9),
    st.integers(0, 6),
    st.floats(0, 20),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=30), st.integers(0, MOST))
def test_as_many_pods_as_wanted_serve_in_the_end_whatever_happens(
    events: list[tuple[str, int, int, float]], wanted: int
) -> None:
    cluster = Cluster()
    for what, index, number, seconds in events:
        cluster.look(number)
        cluster.happen(what, index)
        cluster.now += seconds
    for _ in range(100):
        cluster.look(wanted)
        for name, each in list(cluster.pods.items()):
            if each.phase is Phase.PENDING:
                cluster.pods[name] = replace(each, phase=Phase.RUNNING)
            elif each.phase is Phase.RUNNING:
                cluster.registered.add(name)
        cluster.now += 5.0
    serving = {name for name, each in cluster.pods.items() if each.alive}
    assert len(serving) >= wanted
    assert serving <= cluster.registered
