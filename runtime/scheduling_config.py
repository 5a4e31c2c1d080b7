"""How jobs share the slots for executors (section ``[scheduling]`` of ``sluice.toml``)."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

import msgspec

MAX_QUEUES = 64
MAX_PRIORITY = 100
EVERYBODY = "*"
OTHERS_NAME = "others"
"""Reserved name for the queue of jobs whose queue is not configured (any more)."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue: who may submit to it, and the share of its jobs. Without users and groups, nobody may submit to it."""

    name: str
    """Name of the queue: a-z, 0-9 and -."""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=10_000)] = 1.0
    """Queues with waiting jobs get slots in proportion to their weights."""
    guaranteed: _Share = 0.0
    """Share of the cluster, from 0 to 1, up to which its jobs take precedence over those of other queues."""
    maximum: _Share = 1.0
    """Share of the cluster, from 0 to 1, that its jobs together never exceed; they always get at least one slot."""
    max_slots: _Count = 0
    """Maximum number of slots of its jobs together; 0: unlimited."""
    max_slots_per_user: _Count = 0
    """Maximum number of slots of one user's jobs in it; 0: unlimited."""
    max_priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = 0
    """Highest priority of a job in it."""
    users: tuple[str, ...] = ()
    """Users who may submit to it; ``*``: everybody."""
    groups: tuple[str, ...] = ()
    """Groups whose members may submit to it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name[:64]!r} is not a valid queue name: use 1 to 32 of a-z, 0-9 and -")
        if self.guaranteed > self.maximum:
            raise ValueError(f"queue {self.name}: guaranteed is more than maximum")

    def admits(self, user: str, groups: Collection[str]) -> bool:
        """Whether this user may submit jobs to it."""
        return user in self.users or EVERYBODY in self.users or not set(groups).isdisjoint(self.groups)


class SchedulingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs share the slots for executors. Without queues: first come, first served."""

    queues: tuple[QueueConfig, ...] = ()
    """Queues, as tables ``[[scheduling.queues]]``. A job that names none goes to the first one its owner may use."""
    max_slots_per_group: dict[str, _Count] = {}
    """Maximum number of slots of all members' jobs together, by group name. Requires queues."""
    preemption: bool = True
    """Whether executors are preempted for queues below their guaranteed share, and for jobs of higher priority."""
    preemption_wait: _Seconds = 15.0
    """Seconds for which such a job waits before executors are preempted for it."""
    preemption_grace: _Seconds = 60.0
    """Seconds that a preempted executor has to finish its tasks and move its blocks before it is killed."""

    def __post_init__(self) -> None:
        names = [each.name for each in self.queues]
        if len(set(names)) != len(names):
            raise ValueError("two queues have the same name")
        if OTHERS_NAME in names:
            raise ValueError(f"{OTHERS_NAME!r} is reserved for jobs whose queue is not configured: choose another name")
        if len(names) > MAX_QUEUES:
            raise ValueError(f"there can be {MAX_QUEUES} queues at most")
        if sum(each.guaranteed for each in self.queues) > 1 + 1e-9:
            raise ValueError("the queues are guaranteed more than the whole cluster")
        if self.max_slots_per_group and not self.queues:
            raise ValueError("max_slots_per_group needs queues")

    @property
    def preempts(self) -> bool:
        """Whether executors are ever preempted with this configuration."""
        return self.preemption and any(each.guaranteed or each.max_priority for each in self.queues)

    def name_or_others(self, queue: str) -> str:
        """The queue's name if it is configured, and :data:`OTHERS_NAME` otherwise."""
        return queue if any(each.name == queue for each in self.queues) else OTHERS_NAME
