"""Where slots go, and how many TaskManagers would have to be started for them."""

from __future__ import annotations

import pytest

from sluice.runtime.messages import SlotProfile
from sluice.runtime.placement import Placement, missing_taskmanagers, rank


def size(cores: int, memory_mb: int) -> SlotProfile:
    """Return a slot profile of that size."""
    return SlotProfile(cores=cores, memory_mb=memory_mb)


@pytest.mark.parametrize(
    ("placement", "first"),
    [pytest.param(Placement.SPREAD, "roomy", id="spread"), pytest.param(Placement.PACK, "tight", id="pack")],
)
def test_spread_prefers_the_roomiest_taskmanager_and_pack_the_tightest(placement: Placement, first: str) -> None:
    wanted = size(1, 512)
    frees = {"tight": size(1, 600), "roomy": size(8, 8192), "middle": size(2, 2048)}
    ranks = [rank(placement, name=name, held=0, free=free, wanted=wanted) for name, free in frees.items()]
    assert min(ranks)[-1] == first


def test_spread_first_prefers_the_taskmanager_with_fewer_slots_of_the_job() -> None:
    ranks = [
        rank(Placement.SPREAD, name="has-two", held=2, free=size(64, 65536), wanted=size(1, 512)),
        rank(Placement.SPREAD, name="has-one", held=1, free=size(1, 512), wanted=size(1, 512)),
    ]
    assert min(ranks)[-1] == "has-one"


@pytest.mark.parametrize(
    ("wanted", "free", "needed"),
    [
        pytest.param([], [], 0, id="nothing-is-wanted"),
        pytest.param([(size(1, 512), 4)], [], 1, id="one-is-enough"),
        pytest.param([(size(1, 512), 5)], [], 2, id="one-is-not-enough"),
        pytest.param([(size(1, 512), 5)], [size(1, 512)], 1, id="the-rest-fits-into-what-is-there"),
        pytest.param([(size(1, 2000), 2), (size(3, 10), 1)], [], 2, id="of-two-sizes"),
        pytest.param([(size(1, 1536), 2), (size(1, 512), 2)], [], 2, id="the-largest-first"),
        pytest.param([(size(5, 512), 3)], [], 0, id="no-number-of-them-would-help"),
    ],
)
def test_the_number_of_missing_taskmanagers_is_computed(
    wanted: list[tuple[SlotProfile, int]], free: list[SlotProfile], needed: int
) -> None:
    assert missing_taskmanagers(wanted, free, size(4, 2048), 100) == needed


def test_missing_taskmanagers_are_counted_up_to_the_limit() -> None:
    """Regardless of how many executors a driver wants."""
    assert missing_taskmanagers([(size(1, 512), 2**63)], [], size(4, 2048), 3) == 3
