"""Free space of disks that workers share."""

from __future__ import annotations

from pathlib import Path

from sluice.runtime.processes.shuffle_worker import _disk
from sluice.runtime.shuffle.control_plane.messages import DiskReport, free_space
from sluice.runtime.shuffle.control_plane.statistics import DiskStatistics


def disk(free: int, device: str = "", *, usable: bool = True) -> DiskReport:
    return DiskReport(path="/d", total=1000, free=free, usable=usable, device=device)


def test_a_file_system_is_counted_once_whoever_is_on_it() -> None:
    assert free_space([disk(100, "a"), disk(100, "a"), disk(30, "b"), disk(7, "c", usable=False)]) == 130
    assert free_space([]) == 0


def test_disks_of_workers_that_do_not_say_where_they_are_count_each() -> None:
    assert free_space([disk(100), disk(100), disk(30, "b")]) == 230


def test_directories_of_one_file_system_are_on_the_same_device(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    reports = [_disk(DiskStatistics(str(path), usable=True, free_bytes=10)) for path in (first, second)]
    assert reports[0].device == reports[1].device != ""
    assert free_space(reports) == 10
    elsewhere = _disk(DiskStatistics("/proc", usable=True, free_bytes=0))
    assert elsewhere.device not in {"", reports[0].device}
