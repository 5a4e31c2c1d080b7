"""The name, address and resources of a TaskManager."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.messages import SlotProfile
from sluice.runtime.node import LeaderDiscovery


@dataclass(frozen=True, slots=True)
class TaskManagerShape:
    """Name, address, slots and directories of a TaskManager."""

    name: str
    host: str
    trust_domain: str
    python: str
    slots: int
    profile: SlotProfile
    total: SlotProfile
    driver_slots: int
    driver_profile: SlotProfile
    work: Path
    leader: LeaderDiscovery
