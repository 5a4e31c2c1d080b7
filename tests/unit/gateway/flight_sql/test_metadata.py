"""Patterns, names and the tables that Flight SQL prescribes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from sluice.gateway.flight_sql.messages import new
from sluice.gateway.flight_sql.metadata import SCHEMAS, _sql_info, is_like, quoted, schema_of, unquoted

LETTERS = "ab%_"


@given(st.text("ab_%", max_size=8), st.text(LETTERS, max_size=8))
def test_like_patterns_match_as_the_equivalent_regular_expression(name: str, pattern: str) -> None:
    expression = "".join({"%": ".*", "_": "."}.get(each, re.escape(each)) for each in pattern)
    assert is_like(name, pattern) is (re.fullmatch(expression, name, re.DOTALL) is not None)


def test_like_does_not_take_long_for_a_hostile_pattern() -> None:
    assert not is_like("a" * 250, "%a" * 100 + "b")


@given(st.text(max_size=20))
def test_a_quoted_name_can_be_unquoted_and_contains_no_lone_backtick(name: str) -> None:
    assert unquoted(quoted(name)) == name
    assert "`" not in quoted(name)[1:-1].replace("``", "")


@pytest.mark.parametrize(("shown", "name"), [("default", "default"), ("`a.b`", "a.b"), ("`", "`"), ("`a``b`", "a`b")])
def test_names_are_unquoted_as_spark_shows_them(shown: str, name: str) -> None:
    assert unquoted(shown) == name


def test_sql_info_has_the_schema_that_flight_sql_prescribes() -> None:
    table = _sql_info([])
    table.validate(full=True)
    assert table.schema == SCHEMAS["CommandGetSqlInfo"]
    values = dict(zip(*(table.column(each).to_pylist() for each in (0, 1)), strict=True))
    assert (values[0], values[3], values[8]) == ("Sluice", False, 0)


def test_sql_info_returns_requested_ids_once_and_omits_unknown_ids() -> None:
    assert _sql_info([8, 0, 8, 4_000_000]).column(0).to_pylist() == [0, 8]
    assert _sql_info([4_000_000]).num_rows == 0


def test_the_schema_of_get_tables_depends_on_include_schema() -> None:
    assert "table_schema" not in schema_of("CommandGetTables", new("CommandGetTables")).names
    with_schema = schema_of("CommandGetTables", new("CommandGetTables", include_schema=True))
    assert with_schema.names[-1] == "table_schema"
