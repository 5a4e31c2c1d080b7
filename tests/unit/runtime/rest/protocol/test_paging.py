"""Tests of lists in pages."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.rest.protocol.paging import PageQuery, Position, paginate
from sluice.runtime.rest.protocol.problems import BadRequest

positions = st.sets(st.tuples(st.integers(0, 5), st.text("abc", max_size=2)), max_size=30)


def walk(items: set[Position], limit: int, *, latest_first: bool) -> list[Position]:
    """Return the items of all pages, joined."""
    seen: list[Position] = []
    after: str | None = ""
    while after is not None:
        page, after = paginate(items, PageQuery(limit=limit, after=after), lambda item: item, latest_first=latest_first)
        assert len(page) <= limit
        seen += page
    return seen


@given(positions, st.integers(1, 7), st.booleans())
def test_the_joined_pages_are_the_whole_list(items: set[Position], limit: int, latest_first: bool) -> None:
    assert walk(items, limit, latest_first=latest_first) == sorted(items, reverse=latest_first)


def test_a_cursor_stays_valid_when_its_item_is_removed_and_others_are_added() -> None:
    page, after = paginate([(5, "a"), (4, "b"), (3, "c")], PageQuery(limit=2), lambda item: item, latest_first=True)
    assert page == ((5, "a"), (4, "b"))
    assert after is not None
    page, after = paginate([(6, "z"), (5, "a"), (3, "c")], PageQuery(after=after), lambda item: item, latest_first=True)
    assert (page, after) == (((3, "c"),), None)


@pytest.mark.parametrize("cursor", ["x", "-1", "1", "1-a b", "99999999999999999999-a", "1-" + "a" * 200])
def test_a_malformed_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest):
        paginate([(1, "a")], PageQuery(after=cursor), lambda item: item)
