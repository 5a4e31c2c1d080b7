"""The id map that swaps two ids."""

from __future__ import annotations

import pytest

from sluice.runtime.sandbox.late_mounts import MAX_ID, swapped


@pytest.mark.parametrize(("one", "other"), [(1000, 2000), (2000, 1000), (0, 7), (7, 8), (MAX_ID - 2, MAX_ID - 1)])
def test_the_id_map_covers_every_id_once_and_swaps_two(one: int, other: int) -> None:
    extents = [tuple(map(int, line.split())) for line in swapped(one, other).splitlines()]
    assert sum(count for _, _, count in extents) == MAX_ID

    def outside(wanted: int) -> int:
        return next(low + wanted - inside for inside, low, count in extents if inside <= wanted < inside + count)

    assert (outside(one), outside(other)) == (other, one)
    others = {0, 1, 999, 1001, 5000, MAX_ID - 1} - {one, other}
    assert {outside(each) for each in others} == others
