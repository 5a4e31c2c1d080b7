"""A real cluster for the tests of this folder, started with the command that users run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from sluice.client.access import resolve_access
from sluice.client.rest_client import gateway_client
from sluice.core.home import Home
from tests.integration.cluster import pipelines
from tests.processes import descendants
from tests.shared_folder import shared_folder

REPOSITORY = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "sluice.cli.main"]
PATIENT = {"SLUICE__GATEWAY__AUTHORIZATION_TIMEOUT": "10"}
"""A loaded machine may keep the auth service waiting for longer than the default of half a second."""
T = TypeVar("T")


def eventually(probe: Callable[[], T], what: str, seconds: float = 150.0) -> T:
    """Poll ``probe`` until it returns a true value; returns that value."""
    deadline = time.monotonic() + seconds
    pause = _Pause()
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        pause.take()
    raise AssertionError(f"{what} did not come about within {seconds:.0f} s")


class _Pause:
    """A short wait between two polls."""

    def take(self) -> None:
        import threading

        threading.Event().wait(0.1)


@dataclass(frozen=True)
class LocalCluster:
    """The home of a running cluster, and methods that run commands against it."""

    home: Path

    @property
    def shared(self) -> Path:
        """A folder beside the home that every job may write to."""
        return shared_folder(self.home.parent)

    def sluice(self, *arguments: str, timeout: float = 200, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``sluice ARGUMENTS`` with this home and return what it printed."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=REPOSITORY,
            env=os.environ | {"SLUICE_HOME": str(self.home)} | PATIENT | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """Run a command with ``--json``; returns its decoded output."""
        done = self.sluice(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, pipeline: Path, *arguments: str) -> str:
        """Submit ``pipeline`` with its ``arguments`` without waiting; returns the job id."""
        done = self.sluice("submit", str(pipeline), "--", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def get(self, path: str) -> Any:
        """Send GET ``path`` through the gateway without starting a process; returns the decoded answer."""

        async def fetch() -> Any:
            async with gateway_client(resolve_access(Home.at(self.home))) as client:
                return await client.get(path)

        return asyncio.run(fetch())

    def job(self, job_id: str) -> Any:
        """Return the job's details."""
        return self.get(f"/v1/jobs/{job_id}")

    def wait_for_state(self, job_id: str, *states: str, seconds: float = 150) -> Any:
        """Poll until the job is in one of ``states``."""
        return eventually(
            lambda: job if (job := self.job(job_id))["state"] in states else None, f"job in {states}", seconds
        )

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this cluster: the launcher and its descendants."""
        record = json.loads((self.home / "run" / "cluster.json").read_text())
        launcher = psutil.Process(record["launcher"]["pid"])
        return [launcher, *descendants(launcher.pid)]


def start_cluster(home: Path, *options: str) -> LocalCluster:
    """Start a cluster in the background, and create an admin's token if there is none.

    Its jobs may write to :attr:`LocalCluster.shared`.
    """
    cluster = LocalCluster(home)
    settings = home / "sluice.toml"
    home.mkdir(parents=True, exist_ok=True)
    written = settings.read_text() if settings.exists() else ""
    if "[isolation]" not in written:
        settings.write_text(f"{written}\n[isolation]\nwritable = [{json.dumps(str(cluster.shared))}]\n")
    done = cluster.sluice("up", "--detach", "--port", "0", *options)
    assert done.returncode == 0, done.stderr
    if not (home / "token").exists():
        made = cluster.sluice("token", "create", "tester", "--role", "admin", "--output", str(home / "token"))
        assert made.returncode == 0, made.stderr
    return cluster


def without_shuffle(home: Path) -> Path:
    """Configure ``home`` for a cluster without the shuffle service; returns ``home``.

    Such a cluster starts sooner. The tests of whole systems cover the shuffle service.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / "sluice.toml").write_text("[shuffle]\nenabled = false\n")
    return home


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster that the tests of this folder share."""
    running = start_cluster(without_shuffle(tmp_path_factory.mktemp("cluster") / "home"))
    yield running
    running.sluice("down")


@pytest.fixture(scope="module")
def running_job(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The id of a job that runs during all tests of a module."""
    pipeline = tmp_path_factory.mktemp("running") / "slow.py"
    pipeline.write_text(pipelines.SLOW, encoding="utf-8")
    job_id = cluster.submit(pipeline, "300")
    eventually(lambda: cluster.job(job_id)["progress"]["tasks_running"] > 0, "a running task")
    yield job_id
    cluster.sluice("jobs", "cancel", job_id)
    cluster.wait_for_state(job_id, "CANCELED", "FAILED")
