"""Pagination: ``limit`` items after a cursor. A cursor stays valid when items are added or removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec

from sluice.runtime.rest.protocol.problems import BadRequest
from sluice.runtime.rest.protocol.route import Query

MAX_PAGE = 1000

_CURSOR = re.compile(r"([0-9]{1,19})-([A-Za-z0-9._~-]{0,128})")
_Item = TypeVar("_Item")
Position = tuple[int, str]
"""The sort key of an item: a number, then a name."""


class PageQuery(Query, frozen=True):
    """The query parameters of every list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE, description="maximum number of items")] = MAX_PAGE
    after: Annotated[str, msgspec.Meta(max_length=160, description="`next` of the previous response")] = ""


def paginate(
    items: Iterable[_Item], query: PageQuery, position: Callable[[_Item], Position], *, latest_first: bool = False
) -> tuple[tuple[_Item, ...], str | None]:
    """One page of ``items``, and the cursor of the next page or None.


    Args:
        items: all items, in any order.
        query: limit and cursor of the page.
        position: returns the unique sort key of an item.
        latest_first: whether the largest numbers come first.

    Raises:
        BadRequest: the cursor is malformed.
    """
    placed = sorted(((position(item), item) for item in items), key=lambda pair: pair[0], reverse=latest_first)
    if query.after:
        last = position_of(query.after)
        placed = [pair for pair in placed if (pair[0] < last if latest_first else pair[0] > last)]
    page = placed[: query.limit]
    more = len(placed) > len(page)
    return tuple(item for _, item in page), cursor_at(page[-1][0]) if more else None


def cursor_at(position: Position) -> str:
    """The cursor of the page after the item at ``position``."""
    return "{}-{}".format(*position)


def position_of(cursor: str) -> Position:
    """The position at which the previous page ended; raises :class:`BadRequest` for a malformed cursor."""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise BadRequest(f"{cursor[:40]!r} is not a cursor", "use `next` of the previous response")
    return int(match[1]), match[2]
