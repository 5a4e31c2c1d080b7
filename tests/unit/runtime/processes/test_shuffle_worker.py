"""A shuffle worker as its manager sees it, and the settings from which it is created."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from sluice.core.home import Home
from sluice.pki.spiffe_id import Role
from sluice.runtime.processes.shuffle_worker import (
    last_port,
    remember_port,
    worker_config,
)
from sluice.runtime.shuffle.config import ShuffleConfig, check_shuffle
from sluice.runtime.shuffle.control_plane.errors import ShuffleMisconfigured
from sluice.runtime.shuffle.control_plane.messages import LiveJob
from sluice.runtime.shuffle.worker.registration import WorkerEndpoint
from sluice.runtime.shuffle.worker.worker import ShuffleWorker
from tests.hostile import TestPki

JOB = "a" * 32
CONFIG = ShuffleConfig(enabled=True, memory_mb=32, disk_reserve_mb=1, job_quota_mb=7)


@pytest.fixture
def worker(tmp_path: Path) -> ShuffleWorker:
    """A worker that is not started and has no data on disk."""
    config = worker_config(Home.at(tmp_path / "home").create(), CONFIG, "w-1")
    return ShuffleWorker(config, TestPki(tmp_path).process(Role.SHUFFLE_WORKER, "w-1"))


async def test_a_job_that_restarts_with_another_integrity_key_is_served_until_its_release(
    worker: ShuffleWorker,
) -> None:
    endpoint = WorkerEndpoint(worker)
    for key in (b"01234567", b"01234567", b"76543210"):
        await endpoint.reconcile((), (LiveJob(job_id=JOB, integrity_key=key),))
    assert worker.jobs() == (JOB,)
    await worker.release_job(JOB)
    assert worker.jobs() == ()


def test_a_worker_report_has_jobs_draining_memory_and_disks(worker: ShuffleWorker) -> None:
    worker.allow_job(JOB, b"01234567")
    worker.drain(True)
    report = worker.report()
    assert [(job.job_id, job.bytes) for job in report.jobs] == [(JOB, 0)]
    assert report.draining
    assert report.memory_limit >= 32 << 20
    (disk,) = report.disks
    assert 0 < disk.free <= disk.total
    worker.drain(False)
    assert not worker.report().draining


def test_each_worker_has_a_folder_of_its_own_on_each_disk(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    made = worker_config(home, CONFIG, "w-1")
    assert made.directories == (home.shuffle / "w-1",)
    assert (made.memory_bytes, made.reserved_disk_bytes, made.job_quota_bytes) == (32 << 20, 1 << 20, 7 << 20)
    disks = ShuffleConfig(directories=(str(tmp_path / "d1"), str(tmp_path / "d2")))
    assert worker_config(home, disks, "w-2").directories == (tmp_path / "d1" / "w-2", tmp_path / "d2" / "w-2")


def test_a_worker_reuses_its_last_port_if_it_is_free(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    assert last_port(home, "127.0.0.1", "w-1") == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        remember_port(home, "w-1", port)
        assert last_port(home, "127.0.0.1", "w-1") == 0
    assert last_port(home, "127.0.0.1", "w-1") == port
    assert last_port(home, "127.0.0.1", "w-2") == 0
    remember_port(home, "w-1", 1 << 40)
    assert last_port(home, "127.0.0.1", "w-1") == 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"managers": ("nowhere",)}, "shuffle.managers"),
        ({"heartbeat_interval": 10.0, "heartbeat_timeout": 10.0}, "heartbeat_timeout"),
        ({"job_lease": 10.0, "heartbeat_timeout": 10.0}, "job_lease"),
        ({"enabled": True, "workers": 1, "replicas": 2}, "replicas"),
        ({"enabled": True, "workers": 2, "worker_port": 7338}, "worker_port"),
        ({"enabled": True, "manager_count": 2, "manager_port": 7337}, "manager_port"),
        ({"workers_per_shuffle": 1, "replicas": 2}, "workers_per_shuffle"),
    ],
)
def test_conflicting_shuffle_settings_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ShuffleMisconfigured, match=named):
        check_shuffle(ShuffleConfig(**settings))


def test_an_external_shuffle_service_needs_no_local_workers() -> None:
    elsewhere = ShuffleConfig(enabled=True, managers=("sm1:7337", "sm2:7337"), workers=0, replicas=2)
    assert not check_shuffle(elsewhere).local
    assert elsewhere.addresses() == (("sm1", 7337), ("sm2", 7337))
