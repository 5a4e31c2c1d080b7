"""Which pods to make and which to delete. Decisions only; no I/O.

Level-triggered: :meth:`PodPlan.decide` compares the existing pods, of any leader, with how many TaskManagers should be
in service. A surplus pod that has started is never deleted: its TaskManager registers, is drained when idle, and ends
by itself. A surplus pod that still waits for a node or its image is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.runtime.jobmanager.gateways import ProvisionView
from sluice.runtime.jobmanager.pods.observed_pod import ObservedPod, Phase

SURPLUS_SECONDS = 10.0
"""How long a surplus must last before a pod is deleted: a new leader does not know at once what jobs need."""
MAX_MADE_AT_ONCE = 16
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""Exponential backoff before the next pod is made after one failed or was refused: each pause doubles the last."""


@dataclass(frozen=True, slots=True)
class PodLimits:
    """At most ``most`` pods; one that runs must register within ``start_timeout`` seconds."""

    most: int
    start_timeout: float


@dataclass(frozen=True, slots=True)
class PodDecision:
    """Make ``create`` pods and delete ``delete``; ``note`` says what keeps TaskManagers from starting."""

    create: int
    delete: tuple[ObservedPod, ...]
    note: str
    settled: bool
    """Whether nothing is in progress: the pods need no further look before something changes."""


@dataclass
class PodPlan:
    """The decisions about the pods of one cluster in one term."""

    limits: PodLimits
    _silent_since: dict[str, float] = field(default_factory=dict)
    _registered: set[str] = field(default_factory=set)
    _counted: set[str] = field(default_factory=set)
    _surplus_since: float | None = None
    _failures: int = 0
    _not_before: float = 0.0
    _trouble: str = ""

    def decide(self, pods: Sequence[ObservedPod], view: ProvisionView, now: float) -> PodDecision:
        """Compare the pods with how many should be in service."""
        self._note_registered(pods, view)
        stuck = self._stuck(pods, view, now)
        for pod in pods:
            if pod.end and not pod.deleting:
                self._count_failure(pod, f"pod {pod.name} failed: {pod.end}", now)
        for pod in stuck:
            silence = f"pod {pod.name} ran for {self.limits.start_timeout:g} s and did not register"
            self._count_failure(pod, silence, now)
        gone = [pod for pod in pods if (pod.ended and not pod.deleting) or pod in stuck]
        alive = [pod for pod in pods if pod.alive and pod not in stuck]
        serving = [pod for pod in alive if pod.name not in view.draining]
        missing = view.wanted - len(serving)
        gone += self._surplus(serving, -missing, now)
        room = max(0, self.limits.most - len(alive))
        create = max(0, min(missing, room, MAX_MADE_AT_ONCE)) if now >= self._not_before else 0
        coming = [pod for pod in serving if pod.name not in view.registered]
        note = self._note(coming, missing, room) if missing > 0 or coming else ""
        settled = not (gone or coming or missing or any(pod.deleting for pod in pods))
        return PodDecision(create, tuple(gone), note, settled)

    def refused(self, why: str, now: float) -> None:
        """Note that a pod could not be made, and back off."""
        self._trouble = why
        self._pause(now)

    def _note_registered(self, pods: Sequence[ObservedPod], view: ProvisionView) -> None:
        present = {pod.uid for pod in pods}
        self._counted &= present
        registered = {pod.uid for pod in pods if pod.name in view.registered}
        if registered - self._registered:
            self._failures, self._not_before, self._trouble = 0, 0.0, ""
        self._registered = registered

    def _stuck(self, pods: Sequence[ObservedPod], view: ProvisionView, now: float) -> list[ObservedPod]:
        silent = [pod for pod in pods if pod.alive and pod.phase is Phase.RUNNING and pod.name not in view.registered]
        self._silent_since = {pod.uid: self._silent_since.get(pod.uid, now) for pod in silent}
        return [pod for pod in silent if now - self._silent_since[pod.uid] >= self.limits.start_timeout]

    def _surplus(self, serving: Sequence[ObservedPod], count: int, now: float) -> list[ObservedPod]:
        """The surplus pods to delete, those of earlier terms first."""
        if count <= 0:
            self._surplus_since = None
            return []
        if self._surplus_since is None:
            self._surplus_since = now
        if now - self._surplus_since < SURPLUS_SECONDS:
            return []
        waiting = [pod for pod in serving if pod.phase is Phase.PENDING and pod.uid not in self._registered]
        return sorted(waiting, key=lambda pod: (pod.epoch, pod.name))[:count]

    def _count_failure(self, pod: ObservedPod, why: str, now: float) -> None:
        if pod.uid not in self._counted:
            self._counted.add(pod.uid)
            self._trouble = why
            self._pause(now)

    def _pause(self, now: float) -> None:
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 16))
        self._failures += 1
        self._not_before = max(self._not_before, now + pause)

    def _note(self, coming: Sequence[ObservedPod], missing: int, room: int) -> str:
        held_up = next((pod for pod in coming if pod.obstacle), None)
        if held_up is not None:
            return f"pod {held_up.name} does not start: {held_up.obstacle}"
        if self._trouble:
            return self._trouble
        if missing > 0 and not room:
            return f"there are {self.limits.most} pods, as many as there may be (resources.max_taskmanagers)"
        return f"{len(coming)} pods start" if coming else ""
