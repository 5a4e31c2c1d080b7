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
"""Name of the queue of jobs whose queue is not configured (any more); no other queue has it."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue: who may submit to it, and what its jobs get together. It is nobody's until it names somebody."""

    name: str
    """a-z, 0-9 and -."""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=10_000)] = 1.0
    """Queues with waiting jobs get slots in proportion to their weights."""
    guaranteed: _Share = 0.0
    """Part of the cluster, from 0 to 1, up to which its jobs come before those of other queues."""
    maximum: _Share = 1.0
    """Part of the cluster, from 0 to 1, that its jobs never exceed together; they always get one slot."""
    max_slots: _Count = 0
    """Slots of its jobs together; 0: any number."""
    max_slots_per_user: _Count = 0
    """Slots of the jobs of one user in it; 0: any number."""
    max_priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = 0
    """Highest priority that a job may have in it."""
    users: tuple[str, ...] = ()
    """Who may submit to it; ``*``: everybody."""
    groups: tuple[str, ...] = ()
    """Groups whose members may submit to it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name[:64]!r} is no name of a queue: a-z, 0-9 and -, at most 32 characters")
        if self.guaranteed > self.maximum:
            raise ValueError(f"queue {self.name}: guaranteed is more than maximum")

    def admits(self, user: str, groups: Collection[str]) -> bool:
        """Whether jobs of this user may be in it."""
        return user in self.users or EVERYBODY in self.users or not set(groups).isdisjoint(self.groups)


class SchedulingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs share the slots for executors. Without queues: first come, first served."""

    queues: tuple[QueueConfig, ...] = ()
    """Queues, as tables ``[[scheduling.queues]]``. A job that names none is in the first one that its owner may use."""
    max_slots_per_group: dict[str, _Count] = {}
    """Slots of the jobs of all members of a group together, by its name. Needs queues."""
    preemption: bool = True
    """Whether executors are taken from jobs for queues below what they are guaranteed, and for higher priorities."""
    preemption_wait: _Seconds = 15.0
    """Seconds for which such a job waits before executors are taken for it."""
    preemption_grace: _Seconds = 60.0
    """Seconds that an executor that is taken gets to finish its tasks and hand on its blocks; then it is killed."""

    def __post_init__(self) -> None:
        names = [each.name for each in self.queues]
        if len(set(names)) != len(names):
            raise ValueError("two queues have the same name")
        if OTHERS_NAME in names:
            raise ValueError(f"{OTHERS_NAME!r} is the queue of jobs whose queue is not configured: take another name")
        if len(names) > MAX_QUEUES:
            raise ValueError(f"there can be {MAX_QUEUES} queues at most")
        if sum(each.guaranteed for each in self.queues) > 1 + 1e-9:
            raise ValueError("the queues are guaranteed more than the whole cluster")
        if self.max_slots_per_group and not self.queues:
            raise ValueError("max_slots_per_group needs queues")

    @property
    def preempts(self) -> bool:
        """Whether there is anything for which executors are ever taken."""
        return self.preemption and any(each.guaranteed or each.max_priority for each in self.queues)

    def shown(self, queue: str) -> str:
        """The name of a queue, or of the one in which jobs of queues are that are not configured."""
        return queue if any(each.name == queue for each in self.queues) else OTHERS_NAME
