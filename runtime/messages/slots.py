"""Messages about the slots of TaskManagers: requests, offers, and reports."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.core import ANY_PORT, EgressMode
from sluice.runtime.messages.base import Message
from sluice.runtime.sandbox import IsolationLevel


class SlotState(enum.StrEnum):
    """Slot states, as in Flink's ``TaskSlotState``."""

    FREE = "FREE"
    ALLOCATED = "ALLOCATED"
    ACTIVE = "ACTIVE"
    RELEASING = "RELEASING"


class SlotKind(enum.StrEnum):
    """What a slot is for. Each kind is a separate pool: drivers never use slots for executors, and vice versa."""

    EXECUTOR = "EXECUTOR"
    DRIVER = "DRIVER"


class SlotProfile(Message, frozen=True):
    """Resources: whole cores and JVM heap in MiB, of one slot or of a whole TaskManager."""

    cores: int
    memory_mb: int

    def fits(self, wanted: SlotProfile) -> bool:
        """Whether this is at least as large as ``wanted``."""
        return self.cores >= wanted.cores and self.memory_mb >= wanted.memory_mb

    def plus(self, other: SlotProfile) -> SlotProfile:
        """The sum of both."""
        return SlotProfile(cores=self.cores + other.cores, memory_mb=self.memory_mb + other.memory_mb)

    def less(self, used: SlotProfile) -> SlotProfile:
        """What is left after ``used`` is subtracted, but never less than zero."""
        return SlotProfile(cores=max(0, self.cores - used.cores), memory_mb=max(0, self.memory_mb - used.memory_mb))

    def multiplied(self, count: int) -> SlotProfile:
        """The resources of ``count`` of these."""
        return SlotProfile(cores=count * self.cores, memory_mb=count * self.memory_mb)

    def times(self, part: SlotProfile) -> int:
        """How many of ``part`` fit into this."""
        return min(self.cores // max(1, part.cores), self.memory_mb // max(1, part.memory_mb))


MAX_SLOTS_PER_TASKMANAGER = 1024
"""Maximum number of default and carved slots together; slot numbers are less than this."""

NO_RESOURCES = SlotProfile(cores=0, memory_mb=0)


class SlotCount(Message, frozen=True):
    """A number of slots of one size."""

    profile: SlotProfile
    count: int


class TaskManagerRegistration(Message, frozen=True):
    """A TaskManager registers itself with its default slots (all of one profile) and its total resources.

    Slots of other sizes are carved out of ``total``; None: the sum of the default slots. ``isolation`` is how it
    isolates the processes of jobs, ``egress`` how it controls their outbound connections. In addition, it has
    ``driver_slots`` slots of ``driver_profile`` for drivers.
    """

    name: str
    host: str
    slots: int
    profile: SlotProfile
    python: str
    version: str
    total: SlotProfile | None = None
    isolation: IsolationLevel = IsolationLevel.NONE
    egress: EgressMode = EgressMode.OFF
    driver_slots: int = 0
    driver_profile: SlotProfile = NO_RESOURCES
    report: SlotReport | None = None
    """The state of its slots, including those held since an earlier leader. None: it holds none."""


class RegistrationAccepted(Message, frozen=True):
    """The ResourceManager's answer: the fencing token of all further calls, and the heartbeat settings in seconds."""

    fencing_token: bytes
    heartbeat_interval: float
    heartbeat_timeout: float
    blob_host: str
    blob_port: int


class SlotStatus(Message, frozen=True):
    """One slot as its TaskManager sees it; ``profile`` is None in a default slot."""

    slot: int
    state: SlotState
    allocation_id: str = ""
    job_id: str = ""
    profile: SlotProfile | None = None


class WarmJvms(Message, frozen=True):
    """Warm JVMs waiting on one TaskManager, and how many drivers and executors found one (hits) or not (misses)."""

    waiting: int
    hits: int
    misses: int


class SlotReport(Message, frozen=True):
    """All default slots of one TaskManager, and the held carved ones. ``draining``: it accepts no more work.

    ``driver_slots`` are those for drivers, which have separate numbers. ``warm`` is None where warm JVMs are off.
    """

    slots: tuple[SlotStatus, ...]
    draining: bool = False
    driver_slots: tuple[SlotStatus, ...] = ()
    warm: WarmJvms | None = None

    def of(self, kind: SlotKind) -> tuple[SlotStatus, ...]:
        """The slots of one kind."""
        return self.driver_slots if kind is SlotKind.DRIVER else self.slots


class SlotRequest(Message, frozen=True):
    """The ResourceManager reserves ``slot`` for a job; the TaskManager then offers it to the JobMaster.

    A number beyond those of the default slots means a slot of ``profile`` to be carved out of the free resources.
    """

    slot: int
    allocation_id: str
    job_id: str
    jobmaster_endpoint: str
    jobmaster_token: bytes
    profile: SlotProfile
    kind: SlotKind = SlotKind.EXECUTOR

    def __repr__(self) -> str:
        return f"<SlotRequest of {self.job_id}: {self.kind} slot {self.slot}, {self.profile}>"  # never the token


Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
PortOrAny = Annotated[int, msgspec.Meta(ge=ANY_PORT, le=65535)]

AssignedPorts = Annotated[tuple[Port, ...], msgspec.Meta(max_length=8)]
"""Ports of its host that are assigned to a driver or executor; empty: it may listen on any port."""


class RunningExecutor(Message, frozen=True):
    """An executor that runs in a slot, with its launch parameters."""

    executor_id: int
    app_id: str
    resource_profile_id: int
    cores: int
    memory_mb: int
    ports: AssignedPorts = ()


class SlotOffer(Message, frozen=True):
    """A TaskManager offers a reserved slot to the JobMaster of the job.

    Attributes:
        held: the TaskManager has held the slot since an earlier leader, and offers it again to a new one.
        executor: the executor that runs in a held slot for executors; None: none does.
        driver: the attempt whose driver runs in a held slot for drivers; 0: none does.
        driver_ports: the ports of its host on which that driver listens.
    """

    taskmanager: str
    host: str
    slot: int
    allocation_id: str
    profile: SlotProfile
    kind: SlotKind = SlotKind.EXECUTOR
    held: bool = False
    executor: RunningExecutor | None = None
    driver: int = 0
    driver_ports: AssignedPorts = ()
