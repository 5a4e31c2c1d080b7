"""The names of the operations on a cluster. Most come from the published routes; the others are listed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sluice.gateway.authz.routes import Route

GATEWAY_OPERATIONS: Mapping[str, str] = {
    "connect.use": "open a Spark Connect session through the gateway, and run any Spark code in it",
    "sessions.list": "see who is signed in, and the limits of the gateway",
    "sessions.revoke": "end sessions of any user",
    "tokens.list": "see all API tokens, but not their secrets",
    "tokens.revoke": "revoke API tokens of any user",
    "audit_log.search": "search the audit log, and verify its chain",
    "certificates.list": "see authorities, issued certificates and rotations",
    "certificates.revoke": "revoke the certificate of any process, job or user",
}
"""Operations without a REST route, with their descriptions."""

OWNED_OPERATIONS = frozenset(
    {
        "jobs.cancel",
        "jobs.list",
        "jobs.read",
        "jobs.logs",
        "jobs.connections",
        "jobs.exceptions",
        "jobs.checkpoints",
        "jobs.ui",
        "jobs.receipt",
        "events.read",
        "jobs.savepoint",
        "savepoints.read",
        "savepoints.dispose",
        "shuffle.read",
        "taskmanagers.read",
        "queues.read",
        "connections.read",
    }
)
"""Operations that a policy can grant for the principal's own jobs only. REST then compares the owner."""

_OPERATION = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_PATTERN = re.compile(r"\*|([a-z][a-z0-9_]*|\*)(\.([a-z][a-z0-9_]*|\*))+")


def known_operations(routes: Iterable[Route]) -> frozenset[str]:
    """All operations of these routes and of the gateway itself."""
    return frozenset(route.operation for route in routes) | frozenset(GATEWAY_OPERATIONS)


def is_operation(text: str) -> bool:
    """Whether ``text`` has the form of an operation: ``jobs.cancel``."""
    return _OPERATION.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether ``text`` is an operation or a pattern: ``jobs.cancel``, ``jobs.*``, ``*.read``, ``*``."""
    return _PATTERN.fullmatch(text) is not None


def matches(pattern: str, operation: str) -> bool:
    """Whether ``pattern`` matches ``operation``. ``*`` matches one part of the name; alone, it matches everything."""
    if pattern == "*":
        return is_operation(operation)
    wanted, parts = pattern.split("."), operation.split(".")
    return len(wanted) == len(parts) and all(want in {"*", part} for want, part in zip(wanted, parts, strict=True))
