"""Free space of disks that workers share."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sluice.runtime.shuffle.control_plane.messages import DiskReport, free_space
from sluice.runtime.shuffle.worker.storage.disks import Disks


def disk(free: int, device: str = "", *, usable: bool = True) -> DiskReport:
    return DiskReport(path="/d", total=1000, free=free, usable=usable, device=device)


def test_a_file_system_shared_by_several_disks_is_counted_once() -> None:
    assert free_space([disk(100, "a"), disk(100, "a"), disk(30, "b"), disk(7, "c", usable=False)]) == 130
    assert free_space([]) == 0


def test_disks_without_a_device_are_counted_separately() -> None:
    assert free_space([disk(100), disk(100), disk(30, "b")]) == 230


def test_directories_of_one_file_system_are_on_the_same_device(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    reports = Disks([first, second], 0, 60.0, free_bytes=lambda _: 10).reports()
    assert reports[0].device == reports[1].device != ""
    assert free_space(reports) == 10
    bases = (Path("/dev/shm"), Path("/var/tmp"))  # noqa: S108
    other = next(base for base in bases if base.stat().st_dev != tmp_path.stat().st_dev)
    with tempfile.TemporaryDirectory(dir=other) as elsewhere:
        assert Disks([Path(elsewhere)], 0, 60.0).reports()[0].device not in {"", reports[0].device}
