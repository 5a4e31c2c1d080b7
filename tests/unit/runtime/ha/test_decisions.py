"""HA decisions with a test clock: leases, leadership validity, waiting times, settings, orphans."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from sluice.runtime.ha.config import HaConfig, check_ha
from sluice.runtime.ha.errors import HaMisconfigured, NotReconciled
from sluice.runtime.ha.leadership_validity import LeadershipValidity
from sluice.runtime.jobmanager.attempt.settings import LEASE_MARGIN_SECONDS
from sluice.runtime.jobmanager.dispatcher.orphaned_drivers import may_run, seconds_until_gone
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.store.job_store import AcceptedJob, Attempt
from sluice.runtime.jobmanager.views import AttemptView
from sluice.runtime.messages import BlobRef, JobSubmission
from sluice.runtime.node.orphaned_processes import kill_processes_below
from sluice.runtime.spark.driver.link.lease import DriverLease


class Clock:
    """A clock in seconds that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_leadership_is_valid_from_the_sending_of_the_last_answered_request() -> None:
    clock = Clock()
    validity = LeadershipValidity(lambda: 10.0, 100.0, clock)
    assert validity.remaining == pytest.approx(8.0)
    clock.now = 107.0
    validity.confirm(103.0)
    assert validity.remaining == pytest.approx(4.0)
    validity.confirm(101.0)
    assert validity.remaining == pytest.approx(4.0)
    clock.now = 111.0
    assert validity.remaining <= 0


async def test_a_driver_lease_counts_from_the_sending_of_the_request() -> None:
    clock = Clock()
    lease = DriverLease(10.0, clock)

    async def slow() -> None:
        clock.now += 4.0

    clock.now = 105.0
    await lease.ask(slow)
    assert lease.left == pytest.approx(6.0)
    clock.now = 115.0
    await lease.over()


async def test_a_refused_request_does_not_renew_a_driver_lease() -> None:
    clock = Clock()
    lease = DriverLease(10.0, clock)

    async def refused() -> None:
        raise PermissionError

    clock.now = 105.0
    with pytest.raises(PermissionError):
        await lease.keep(refused)
    assert lease.left == pytest.approx(5.0)


async def test_a_leader_that_tells_a_driver_to_wait_renews_its_lease() -> None:
    clock = Clock()
    lease = DriverLease(10.0, clock)

    async def too_early() -> None:
        clock.now += 4.0
        raise NotReconciled("its TaskManager is not there yet")

    clock.now = 105.0
    with pytest.raises(NotReconciled):
        await lease.ask(too_early)
    assert lease.left == pytest.approx(6.0)


def test_a_driver_lease_of_zero_seconds_never_expires() -> None:
    assert DriverLease(0).left == float("inf")


LATEST = Attempt(number=2, epoch=1, origin="here", token="0" * 32, taskmanager="tm-1")
SUBMISSION = JobSubmission(name="p.py", owner="ann", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1))
JOB = AcceptedJob(
    job_id="1" * 32, name="p.py", owner="ann", accepted_at=1, cancelled=False, submission=SUBMISSION, attempt=LATEST
)


@pytest.mark.parametrize(
    ("changes", "attempts", "expected"),
    [
        pytest.param({}, (), True, id="launched"),
        pytest.param({}, (AttemptView(number=2, started_at=1),), True, id="going-on"),
        pytest.param({}, (AttemptView(number=1, started_at=1, outcome="FAILED"),), True, id="an-earlier-one-failed"),
        pytest.param({}, (AttemptView(number=2, started_at=1, outcome="FAILED"),), False, id="its-end-was-seen"),
        pytest.param({"running": False}, (), False, id="known-to-be-gone"),
        pytest.param({"taskmanager": ""}, (), False, id="never-launched"),
    ],
)
def test_a_driver_of_an_earlier_leader_may_still_run_unless_its_end_is_recorded(
    changes: dict[str, Any], attempts: tuple[AttemptView, ...], expected: bool
) -> None:
    job = dataclasses.replace(JOB, attempt=msgspec.structs.replace(LATEST, **changes))
    assert may_run(job, JobHistory(attempts=attempts)) is expected


def test_a_job_that_never_began_or_cannot_be_read_has_no_driver() -> None:
    assert not may_run(dataclasses.replace(JOB, attempt=None), JobHistory())
    assert not may_run(dataclasses.replace(JOB, submission=None), JobHistory())


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(100.0, 10.0 + LEASE_MARGIN_SECONDS, id="just-elected"),
        pytest.param(112.0, 3.0, id="elected-a-while-ago"),
        pytest.param(200.0, 0.0, id="long-ago"),
    ],
)
def test_a_new_leader_waits_for_the_rest_of_the_lease_and_its_margin(now: float, expected: float) -> None:
    assert seconds_until_gone(granted_at=100.0, lease=10.0, now=now) == pytest.approx(expected)


def test_only_processes_with_a_working_directory_below_the_given_one_are_killed(tmp_path: Path) -> None:
    directory = tmp_path / "jobs" / ("a" * 32) / "driver-1"
    (directory / "app").mkdir(parents=True)
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    inside = subprocess.Popen(argv, cwd=directory / "app")
    outside = subprocess.Popen(argv, cwd=tmp_path)
    try:
        assert kill_processes_below(tmp_path / "jobs") == 1
        assert not psutil.pid_exists(inside.pid)
        assert psutil.pid_exists(outside.pid)
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
        inside.poll()


ZOOKEEPER = {
    "mode": "zookeeper",
    "storage": "/shared",
    "zookeeper_hosts": ("zk1:2281",),
    "jobmanagers": ("jobmanager-1",),
}


def test_consistent_ha_settings_are_accepted() -> None:
    assert check_ha(HaConfig()).mode == "embedded"
    check_ha(HaConfig(**ZOOKEEPER))  # type: ignore[arg-type]  # of several types


def test_inconsistent_ha_settings_of_kubernetes_are_refused() -> None:
    check_ha(HaConfig(mode="kubernetes", storage="s3://bucket/x", kubernetes_api="https://10.0.0.1:6443"))
    for change, key in (
        ({"storage": ""}, "storage"),
        ({"kubernetes_api": "http://10.0.0.1"}, "kubernetes_api"),
        ({"kubernetes_api": "https://user:secret@host"}, "kubernetes_api"),
        ({"kubernetes_namespace": "../x"}, "kubernetes_namespace"),
    ):
        with pytest.raises(HaMisconfigured, match=f"ha.{key}"):
            check_ha(HaConfig(**{"mode": "kubernetes", "storage": "/shared", **change}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"zookeeper_hosts": ()}, "zookeeper_hosts"),
        ({"zookeeper_hosts": ("zk1",)}, "zookeeper_hosts"),
        ({"zookeeper_hosts": ("zk1:99999",)}, "zookeeper_hosts"),
        ({"zookeeper_hosts": ("zk1:2281,zk2:2281",)}, "zookeeper_hosts"),
        ({"storage": ""}, "storage"),
        ({"zookeeper_root": "/"}, "zookeeper_root"),
        ({"zookeeper_root": "/a/../b"}, "zookeeper_root"),
        ({"cluster": "../x"}, "cluster"),
        ({"jobmanagers": ()}, "jobmanagers"),
        ({"jobmanagers": ("x" * 60,)}, "jobmanagers"),
        ({"jobmanagers": ("a,CN=b",)}, "jobmanagers"),
    ],
)
def test_inconsistent_ha_settings_of_zookeeper_are_refused(change: dict[str, object], key: str) -> None:
    with pytest.raises(HaMisconfigured, match=f"ha.{key}"):
        check_ha(HaConfig(**{**ZOOKEEPER, **change}))  # type: ignore[arg-type]  # of several types
