"""The pages and the operation that each requires: users see only the pages that they may open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One entry: where it leads, what the policy must grant, and the name of its picture."""

    title: str
    path: str
    operation: str
    icon: str


@dataclass(frozen=True, slots=True)
class Group:
    """Entries under one heading."""

    title: str
    places: tuple[Place, ...]


NAVIGATION: tuple[Group, ...] = (
    Group(
        "Cluster",
        (
            Place("Overview", "/ui", "overview.read", "overview"),
            Place("Jobs", "/ui/jobs", "jobs.list", "jobs"),
            Place("TaskManagers", "/ui/taskmanagers", "taskmanagers.read", "taskmanagers"),
            Place("Queues", "/ui/queues", "queues.read", "queues"),
            Place("Shuffle", "/ui/shuffle", "shuffle.read", "shuffle"),
        ),
    ),
    Group(
        "Trust",
        (
            Place("Trust map", "/ui/trust", "connections.read", "trust"),
            Place("Certificates", "/auth/ui/pki", "certificates.list", "pki"),
            Place("Gateway", "/auth/ui/gateway", "sessions.list", "gateway"),
            Place("Audit log", "/auth/ui/audit-log", "audit_log.search", "audit"),
        ),
    ),
)
