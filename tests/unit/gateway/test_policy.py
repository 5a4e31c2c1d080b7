"""The whole policy as a table: what is not in it is denied."""

from __future__ import annotations

import pytest

from gateway.policy import OPERATIONS, permits, unknown_operations
from gateway.principal import AccessRole

V, S, A = AccessRole.VIEWER, AccessRole.SUBMITTER, AccessRole.ADMIN

TABLE = {
    "overview.read": {V, S, A},
    "jobs.list": {V, S, A},
    "jobs.read": {V, S, A},
    "jobs.logs": {V, S, A},
    "jobs.connections": {V, S, A},
    "taskmanagers.read": {V, S, A},
    "connections.read": {V, S, A},
    "jobs.submit": {S, A},
    "jobs.cancel": {S, A},
}


@pytest.mark.parametrize("role", list(AccessRole))
@pytest.mark.parametrize("operation", sorted(TABLE))
def test_role_and_operation(role: AccessRole, operation: str) -> None:
    assert permits([role], operation) is (role in TABLE[operation])


def test_table_is_complete() -> None:
    assert set(TABLE) == OPERATIONS


@pytest.mark.parametrize(
    "operation", ["", "jobs", "jobs.*", "*", "Jobs.List", "jobs.list ", "jobs.delete", "cluster.stop"]
)
@pytest.mark.parametrize("role", list(AccessRole))
def test_unknown_operation_is_denied_to_everybody(role: AccessRole, operation: str) -> None:
    assert not permits([role], operation)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_nobody_without_a_role_may_do_anything(operation: str) -> None:
    assert not permits([], operation)


def test_roles_add_up() -> None:
    assert permits([V, S], "jobs.submit")


def test_unknown_operations_are_named() -> None:
    assert unknown_operations(["jobs.list", "jobs.delete", "a.b"]) == ["a.b", "jobs.delete"]
