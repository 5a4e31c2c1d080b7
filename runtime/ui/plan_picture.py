"""Lays out the plan of a job as a graph: each stage is to the right of those it depends on. Decisions only; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.core.pages import Tone
from sluice.runtime.messages import StageReport, StageState

WIDTH, HEIGHT = 176, 62
GAP_X, GAP_Y, MARGIN = 46, 18, 10
MAX_DRAWN = 60
"""A plan with more stages is shown only as a table; its graph would not be readable."""
SKEWED = 4.0
"""A stage counts as skewed if its slowest task took at least this many times the median."""
SKEW_FROM_MS = 1000

_TONES: dict[StageState, Tone] = {
    StageState.PENDING: "idle",
    StageState.RUNNING: "run",
    StageState.FINISHED: "ok",
    StageState.FAILED: "bad",
    StageState.SKIPPED: "idle",
}


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage with its tone, spill and skew."""

    stage: StageReport
    tone: Tone
    spilled: int
    skew: float | None
    """The duration of the slowest task as a multiple of the median; None if the stage is not skewed."""


@dataclass(frozen=True, slots=True)
class StageBox:
    """A stage in the graph. ``done`` is the width of its progress bar."""

    view: StageView
    x: int
    y: int
    done: int


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """The layout of the graph."""

    width: int
    height: int
    boxes: tuple[StageBox, ...]
    lines: tuple[str, ...]


def view_of(stage: StageReport) -> StageView:
    """The view of ``stage``."""
    skew = None
    if len(stage.task_ms) == 5 and stage.task_ms[4] >= SKEW_FROM_MS:
        times = stage.task_ms[4] / max(1, stage.task_ms[2])
        skew = times if times >= SKEWED else None
    return StageView(stage, _TONES[stage.state], stage.memory_spilled_bytes + stage.disk_spilled_bytes, skew)


def draw_plan(stages: Sequence[StageReport]) -> PlanPicture | None:
    """Lay out the stages; None if there are none, or more than :data:`MAX_DRAWN`."""
    if not stages or len(stages) > MAX_DRAWN:
        return None
    columns = _columns(stages)
    rows: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}
    for stage in stages:
        column = columns[stage.id]
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[stage.id] = (MARGIN + column * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y))
    boxes = tuple(
        StageBox(view_of(each), *places[each.id], round((WIDTH - 20) * each.tasks_finished / max(1, each.tasks_total)))
        for each in stages
    )
    lines = tuple(
        _line(places[parent], places[each.id]) for each in stages for parent in each.parents if parent in places
    )
    return PlanPicture(
        max(x for x, _ in places.values()) + WIDTH + MARGIN,
        max(y for _, y in places.values()) + HEIGHT + MARGIN,
        boxes,
        lines,
    )


def _columns(stages: Sequence[StageReport]) -> Mapping[int, int]:
    """The column of each stage: its longest chain of parents. Reported parents may form a cycle; that is tolerated."""
    by_id = {stage.id: stage for stage in stages}
    columns = dict.fromkeys(by_id, 0)
    for _ in range(len(by_id)):
        changed = False
        for stage in stages:
            wanted = max((columns[parent] + 1 for parent in stage.parents if parent in columns), default=0)
            if columns[stage.id] < wanted < len(by_id):
                columns[stage.id], changed = wanted, True
        if not changed:
            break
    return columns


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + WIDTH, start[1] + HEIGHT // 2, end[0], end[1] + HEIGHT // 2
    bend = (x1 + x2) // 2
    return f"M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}"
