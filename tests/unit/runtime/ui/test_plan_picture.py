"""The plan of a job as a graph."""

from __future__ import annotations

import msgspec
import pytest

from sluice.runtime.messages import JobState, StageReport, StageState
from sluice.runtime.ui.plan_picture import (
    HEIGHT,
    MAX_DRAWN,
    WIDTH,
    draw_plan,
    view_of,
)
from tests.simulated_cluster import job, stage

DETAIL = job(1, JobState.RUNNING, 1_800_000_000.0)


def chain(count: int, *, parents: tuple[int, ...] | None = None) -> list[StageReport]:
    first = stage(0, DETAIL)
    return [
        msgspec.structs.replace(first, id=number, parents=(number - 1,) if parents is None else parents)
        for number in range(count)
    ]


def test_each_stage_is_drawn_to_the_right_of_its_parents() -> None:
    stages = [stage(number, DETAIL) for number in range(7)]
    picture = draw_plan(stages)
    assert picture is not None
    places = {box.view.stage.id: (box.x, box.y) for box in picture.boxes}
    assert len(set(places.values())) == 7
    assert all(places[parent][0] < places[each.id][0] for each in stages for parent in each.parents)
    assert all(x + WIDTH <= picture.width and y + HEIGHT <= picture.height for x, y in places.values())
    assert all(0 <= box.done <= WIDTH - 20 for box in picture.boxes)


def test_a_plan_without_stages_or_with_too_many_is_not_drawn() -> None:
    assert draw_plan(()) is None
    assert draw_plan(chain(MAX_DRAWN)) is not None
    assert draw_plan(chain(MAX_DRAWN + 1)) is None


@pytest.mark.parametrize("parents", [(0, 1, 2), (4711,), (2, 2, 2)])
def test_a_plan_with_a_cycle_is_still_drawn(parents: tuple[int, ...]) -> None:
    picture = draw_plan(chain(3, parents=parents))
    assert picture is not None
    assert len(picture.boxes) == 3


@pytest.mark.parametrize(
    ("times", "skew"),
    [
        ((), None),
        ((1, 2, 3, 4, 900), None),
        ((100, 200, 1000, 2000, 3900), None),
        ((1, 2, 0, 4, 1000), 1000.0),
        ((1, 2, 500, 4, 2000), 4.0),
    ],
)
def test_the_skew_of_a_stage_is_computed_from_its_task_times(times: tuple[int, ...], skew: float | None) -> None:
    assert view_of(msgspec.structs.replace(stage(0, DETAIL), task_ms=times)).skew == skew


@pytest.mark.parametrize("state", list(StageState))
def test_every_state_has_a_tone(state: StageState) -> None:
    assert view_of(msgspec.structs.replace(stage(0, DETAIL), state=state)).tone in {"idle", "run", "ok", "bad"}
