"""Statement handles: who owns one, how long it lasts, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from grpclib.const import Status

from sluice.gateway.flight_sql import statements as module
from sluice.gateway.flight_sql.statements import (
    MAX_SQL_BYTES,
    MAX_SQL_BYTES_OF_ALL,
    MAX_SQL_BYTES_OF_ONE,
    MAX_STATEMENTS,
    PREPARED_SECONDS,
    TICKET_SECONDS,
    StatementRefused,
    Statements,
)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def statements(clock: Clock) -> Statements:
    return Statements(clock)


def test_a_ticket_can_be_redeemed_only_once(statements: Statements) -> None:
    ticket = statements.ticket("ada", "SELECT 1")
    assert statements.redeem("ada", ticket) == "SELECT 1"
    with pytest.raises(StatementRefused) as caught:
        statements.redeem("ada", ticket)
    assert caught.value.status is Status.NOT_FOUND
    assert len(statements) == 0


def test_handles_of_another_principal_are_not_found(statements: Statements) -> None:
    ticket = statements.ticket("ada", "SELECT 1")
    prepared = statements.prepare("ada", "SELECT 2", b"")
    with pytest.raises(StatementRefused):
        statements.redeem("bob", ticket)
    with pytest.raises(StatementRefused):
        statements.prepared("bob", prepared)
    statements.close("bob", prepared)
    assert statements.prepared("ada", prepared) == ("SELECT 2", b"")
    assert statements.redeem("ada", ticket) == "SELECT 1"


def test_a_ticket_is_not_accepted_as_a_prepared_statement_nor_vice_versa(statements: Statements) -> None:
    ticket, prepared = statements.ticket("ada", "SELECT 1"), statements.prepare("ada", "SELECT 2", b"schema")
    with pytest.raises(StatementRefused):
        statements.prepared("ada", ticket)
    with pytest.raises(StatementRefused):
        statements.redeem("ada", prepared)
    statements.close("ada", ticket)
    assert statements.redeem("ada", ticket) == "SELECT 1"


def test_a_ticket_expires(statements: Statements, clock: Clock) -> None:
    ticket = statements.ticket("ada", "SELECT 1")
    clock.now += TICKET_SECONDS
    with pytest.raises(StatementRefused):
        statements.redeem("ada", ticket)
    statements.ticket("bob", "SELECT 1")
    assert len(statements) == 1


def test_a_prepared_statement_expires_only_when_it_is_unused(statements: Statements, clock: Clock) -> None:
    handle = statements.prepare("ada", "SELECT 1", b"schema")
    for _ in range(3):
        clock.now += PREPARED_SECONDS - 1
        assert statements.prepared("ada", handle) == ("SELECT 1", b"schema")
    clock.now += PREPARED_SECONDS
    with pytest.raises(StatementRefused):
        statements.prepared("ada", handle)


def test_a_closed_statement_is_not_found_and_can_be_closed_twice(statements: Statements) -> None:
    handle = statements.prepare("ada", "SELECT 1", b"")
    statements.close("ada", handle)
    statements.close("ada", handle)
    with pytest.raises(StatementRefused):
        statements.prepared("ada", handle)


def test_the_statement_limit_is_per_principal(statements: Statements, clock: Clock) -> None:
    for _ in range(MAX_STATEMENTS):
        statements.ticket("ada", "SELECT 1")
    with pytest.raises(StatementRefused) as caught:
        statements.prepare("ada", "SELECT 1", b"")
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    statements.ticket("bob", "SELECT 1")
    clock.now += TICKET_SECONDS
    statements.ticket("ada", "SELECT 1")


def test_the_total_sql_text_is_bounded_per_principal_and_overall(statements: Statements) -> None:
    longest = "x" * MAX_SQL_BYTES
    fit = MAX_SQL_BYTES_OF_ONE // MAX_SQL_BYTES
    for _ in range(fit):
        statements.ticket("ada", longest)
    with pytest.raises(StatementRefused):
        statements.ticket("ada", "SELECT 1")
    for number in range(MAX_SQL_BYTES_OF_ALL // MAX_SQL_BYTES - fit):
        statements.ticket(f"user-{number}", longest)
    with pytest.raises(StatementRefused):
        statements.ticket("bob", "SELECT 1")


@pytest.mark.parametrize("sql", ["", " \n", "x" * (MAX_SQL_BYTES + 1), "ü" * (MAX_SQL_BYTES // 2 + 1)])
def test_empty_or_too_long_sql_is_refused(statements: Statements, sql: str) -> None:
    with pytest.raises(StatementRefused) as caught:
        statements.ticket("ada", sql)
    assert caught.value.status is Status.INVALID_ARGUMENT
    assert "xxx" not in str(caught.value)


def test_handles_are_unique_and_of_fixed_length(statements: Statements) -> None:
    handles = {statements.ticket("ada", "SELECT 1") for _ in range(50)}
    assert len(handles) == 50
    assert {len(each) for each in handles} == {module._HANDLE_BYTES}
