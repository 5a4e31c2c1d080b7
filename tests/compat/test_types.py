"""Which changes of a type break compatibility between two releases, and which do not."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
import pytest

from tests.compat.types import Comparison, Describer


class Colour(enum.StrEnum):
    RED = "red"


class Shade(enum.StrEnum):
    RED = "red"
    DARK = "dark"


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: int
    b: str = ""


class StrictWithUnset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: int
    b: str = ""
    c: int | msgspec.UnsetType = msgspec.UNSET


class StrictWithDefault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: int
    b: str = ""
    c: int = 0


class StrictThatOmits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    a: int
    b: str = ""
    c: int = 0


class StrictWithRequired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: int
    c: int
    b: str = ""


class StrictWithoutDefault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: int
    b: str


class Shorter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: int


class Lenient(msgspec.Struct, frozen=True):
    a: int


class LenientWithDefault(msgspec.Struct, frozen=True):
    a: int
    b: int = 0


class Row(msgspec.Struct, frozen=True, array_like=True):
    a: int


class LongerRow(msgspec.Struct, frozen=True, array_like=True):
    a: int
    b: int = 0


class Tagged(msgspec.Struct, frozen=True, tag="one"):
    a: int


class Retagged(msgspec.Struct, frozen=True, tag="two"):
    a: int


class Tree(msgspec.Struct, frozen=True):
    children: tuple[Tree, ...] = ()


def breaks(old: Any, new: Any) -> list[str]:  # type expressions
    before, after = Describer(), Describer()
    described = before.describe(old), after.describe(new)
    return list(Comparison(before.structs, after.structs).breaks("it", *described))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Strict, Strict),
        (Strict, StrictWithUnset),
        (Strict, StrictThatOmits),
        (StrictWithoutDefault, Strict),
        (Lenient, LenientWithDefault),
        (Tree, Tree),
        (tuple[Strict, ...], tuple[StrictWithUnset, ...]),
        (Strict | None, StrictWithUnset | None),
    ],
)
def test_a_change_that_both_releases_understand_is_not_a_break(old: Any, new: Any) -> None:
    assert breaks(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (Strict, StrictWithDefault, "it.c: is new, and sent to releases that refuse it"),
        (Strict, StrictWithRequired, "it.c: is new, and required"),
        (Strict, Shorter, "it.b: is gone"),
        (Strict, StrictWithoutDefault, "it.b: is required now"),
        (Row, LongerRow, "it: the fields of an array have changed"),
        (Tagged, Retagged, "it: tag was ['type', 'one'], is ['type', 'two']"),
        (Colour, Shade, "it: its values were ['red'], are ['dark', 'red']"),
        (int, str, "it: was int, is str"),
        (int | None, int, "it: was union, is int"),
        (int | str, int | str | None, "it: had 2 types, has 3"),
        (Annotated[int, msgspec.Meta(le=9)], Annotated[int, msgspec.Meta(le=10)], "it.le: was 9, is 10"),
        (tuple[int, ...], tuple[str, ...], "it.item_type: was int, is str"),
        (dict[str, Strict], dict[str, Shorter], "it.value_type.b: is gone"),
    ],
)
def test_a_change_that_one_release_does_not_understand_is_reported_as_a_break(old: Any, new: Any, told: str) -> None:
    assert [each[: len(told)] for each in breaks(old, new)] == [told]
