"""The content of the pages about the shuffle service, as values. Decisions only; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.core.pages import Tone
from sluice.runtime.shuffle.control_plane import ShuffleJobView, ShuffleOverview, WorkerState, WorkerView, free_space

_TONES: Mapping[WorkerState, Tone] = {
    WorkerState.ACTIVE: "ok",
    WorkerState.EXCLUDED: "bad",
    WorkerState.DRAINING: "warn",
    WorkerState.DRAINED: "idle",
    WorkerState.LOST: "bad",
}
_ORDER = (WorkerState.LOST, WorkerState.EXCLUDED, WorkerState.DRAINING, WorkerState.ACTIVE, WorkerState.DRAINED)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker; sizes are in bytes. ``drain`` and ``resume`` tell whether the page offers these actions."""

    view: WorkerView
    tone: Tone
    disk_free: int
    problems: tuple[str, ...]
    drain: bool
    resume: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with data in the service, and its name."""

    view: ShuffleJobView
    name: str


def space_left(service: ShuffleOverview | None) -> int:
    """Free bytes of all workers. Disks that several workers share count once."""
    return free_space(disk for each in service.workers for disk in each.report.disks) if service else 0


def tally(service: ShuffleOverview | None) -> tuple[tuple[WorkerState, Tone, int], ...]:
    """The number of workers per state, problems first. States without workers are left out."""
    counted = Counter(each.state for each in service.workers) if service else Counter[WorkerState]()
    return tuple((state, _TONES[state], counted[state]) for state in _ORDER if counted[state])


def worker_rows(service: ShuffleOverview | None) -> tuple[WorkerRow, ...]:
    """All workers, those with problems first."""
    if service is None:
        return ()
    ordered = sorted(service.workers, key=lambda each: (_ORDER.index(each.state), each.name))
    return tuple(_row(each) for each in ordered)


def _row(view: WorkerView) -> WorkerRow:
    asked_away = view.state in {WorkerState.DRAINING, WorkerState.DRAINED}
    return WorkerRow(
        view,
        _TONES[view.state],
        free_space(view.report.disks),
        tuple(f"{disk.path}: {disk.error or 'not used'}" for disk in view.report.disks if not disk.usable),
        drain=view.state in {WorkerState.ACTIVE, WorkerState.EXCLUDED},
        resume=asked_away,
    )


def job_rows(service: ShuffleOverview | None, names: Mapping[str, str]) -> tuple[JobRow, ...]:
    """The jobs with data in the service, largest first."""
    jobs = sorted(service.jobs if service else (), key=lambda each: (-each.bytes, each.job_id))
    return tuple(JobRow(each, names.get(each.job_id, each.job_id[:8])) for each in jobs)
