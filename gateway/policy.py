"""Who may do what: roles by operations, default deny. Decisions only, no I/O.

Operations are named by the REST route list. Ownership ("a submitter cancels only its own jobs") is
not decided here but where owners are known: REST gets principal and roles with every request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from gateway.principal import AccessRole

_READ = frozenset(
    {
        "overview.read",
        "jobs.list",
        "jobs.read",
        "jobs.logs",
        "jobs.connections",
        "taskmanagers.read",
        "connections.read",
    }
)
_SUBMIT = frozenset({"jobs.submit", "jobs.cancel"})

OPERATIONS: frozenset[str] = _READ | _SUBMIT
"""Every operation the gateway knows; a route that names another one is closed to everybody."""

POLICY: Mapping[AccessRole, AbstractSet[str]] = {
    AccessRole.VIEWER: _READ,
    AccessRole.SUBMITTER: _READ | _SUBMIT,
    AccessRole.ADMIN: OPERATIONS,
}


def permits(roles: Iterable[AccessRole], operation: str) -> bool:
    """Whether any of ``roles`` allows ``operation``; an unknown operation is allowed to nobody."""
    return any(operation in POLICY.get(role, frozenset()) for role in roles)


def unknown_operations(operations: Iterable[str]) -> list[str]:
    """Those of ``operations`` that no role could ever be granted, sorted."""
    return sorted(set(operations) - OPERATIONS)
