"""A rolling upgrade to another release and back, process by process, while jobs run and users ask.

``SLUICE_UPGRADE_FROM=COMMIT`` names the other release. By default it is the commit that recorded the newest
release in ``tests/compat/releases``, or the commit since which processes keep their release (ADR 148), if
that is newer. Both releases are installed as wheels in environments of their own; a link selects the one in
use.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from sluice.cli.cluster.records import read_record
from sluice.client.access import resolve_access
from sluice.client.errors import AwayError, UnreachableError
from sluice.client.rest_client import gateway_client
from sluice.core.home import Home
from tests.shared_folder import shared_folder
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[3]
INSTALL_SECONDS = 900
COMMAND_SECONDS = 900
DEADLINE_SECONDS = 300.0
RETRY_SECONDS = 60.0
"""For so long a client asks again when nobody answers."""
BEFORE, AFTER = "before", "after"
RECORDED = ("tests/compat/releases", "docs/adr/0148-keep-a-process-on-its-release.md")
ANSWER = "4999950000"
CONFIG = """
[isolation]
writable = ["{shared}"]

[resources]
provider = "process"
min_taskmanagers = 2
"""
PIPELINE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
sums = spark.range(100000).selectExpr("id % 7 as k", "id").groupBy("k").sum("id").collect()
Path(sys.argv[1], spark.sparkContext.applicationId).write_text(str(sum(each[1] for each in sums)))
spark.stop()
"""
ORDER = ("ca", "shuffle-manager", "shuffle-worker", "jobmanager", "taskmanager", "auth", "connect", "envoy")
"""Of docs/howto/upgrade.md."""


def git(*arguments: str) -> bytes:
    """What ``git ARGUMENTS`` prints; needs the history of the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def install(tree: Path, environment: Path) -> None:
    """Build the wheel of ``tree``, and install it with its dependencies in ``environment``."""
    wheels = tree.with_name(f"{tree.name}-wheels")
    subprocess.run([tree / "scripts" / "make-wheel", wheels], check=True, timeout=INSTALL_SECONDS)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=INSTALL_SECONDS)
    pip: list[str | Path] = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    for name in ("build", "run"):
        requirements = tree / "requirements" / f"{name}.txt"
        locked = [*pip, "--no-build-isolation", "--require-hashes", "--requirement", requirements]
        subprocess.run(locked, check=True, timeout=INSTALL_SECONDS)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True, timeout=INSTALL_SECONDS)


@dataclass
class Releases:
    """Two installed releases, the link ``current`` to one of them, and the home of a cluster."""

    place: Path

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def shared(self) -> Path:
        """A folder that jobs may write."""
        return shared_folder(self.place)

    def use(self, which: str) -> None:
        """Select the release of all processes that start from now on."""
        staged = self.place / "current.new"
        staged.symlink_to(which)
        staged.rename(self.place / "current")

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``sluice ARGUMENTS`` of the current release."""
        passed = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "TMPDIR") if name in os.environ}
        return subprocess.run(
            [self.place / "current" / "bin" / "python", "-P", "-m", "sluice.cli.main", *arguments],
            cwd=self.place,
            env=passed | {"HOME": str(self.place), "LANG": "C.UTF-8", "SLUICE_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def do(self, *arguments: str) -> str:
        """Run ``sluice ARGUMENTS``, which must succeed; returns its output."""
        done = self.sluice(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def running(self) -> dict[str, int]:
        """The pids of the running processes of the cluster, by name."""
        record = read_record(Home.at(self.home))
        return {each.name: each.pid for each in record.children if each.find()} if record is not None else {}

    def replace(self, name: str) -> None:
        """End a process as the upgrade guide says, and wait for its replacement.

        For a TaskManager, only its end is awaited: a new one starts when jobs need it.
        """
        before = self.running()[name]
        if name.startswith("taskmanager"):
            self.do("drain", name, "--wait", "--timeout", str(COMMAND_SECONDS))
            wait_until(lambda: self.running().get(name) != before, f"{name} did not leave", DEADLINE_SECONDS)
            return
        psutil.Process(before).terminate()
        wait_until(lambda: self.running().get(name, before) != before, f"{name} did not start again", DEADLINE_SECONDS)
        wait_until(lambda: self.sluice("status").returncode == 0, "the cluster is not ready", DEADLINE_SECONDS, 0.5)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    """Both releases installed, and a running cluster of the older one."""
    place = tmp_path_factory.mktemp("upgrade")
    place.chmod(0o755)
    found = Releases(place)
    commit = os.environ.get("SLUICE_UPGRADE_FROM") or git("log", "-1", "--format=%H", "--", *RECORDED)
    archive = git("archive", commit if isinstance(commit, str) else commit.decode().strip())
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(place / "tree", filter="data")
    install(place / "tree", place / BEFORE)
    install(ROOT, place / AFTER)
    found.use(BEFORE)
    found.home.mkdir(mode=0o700)
    (found.home / "sluice.toml").write_text(CONFIG.format(shared=found.shared))
    found.do("up", "--detach", "--port", "0", "--jobmanagers", "2")
    found.do("token", "create", "tester", "--role", "admin", "--output", str(found.home / "token"))
    yield found
    found.sluice("down")
    shutil.rmtree(place)


class Load:
    """Users who make requests and submit jobs in a loop, each in a thread; errors are in ``failures``."""

    def __init__(self, releases: Releases, pipeline: Path) -> None:
        self._releases, self._pipeline = releases, pipeline
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=[each]) for each in (self._ask, self._submit)]
        self.jobs: list[str] = []
        self.asked = self.again = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def _repeat(self, what: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                what()
            except Exception as error:  # noqa: BLE001  whatever it was, it went wrong
                self.failures.append(repr(error))

    def patiently(self, path: str) -> Any:
        """The answer to GET ``path``; asks again while nobody answers."""
        until = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return asyncio.run(self._get(path))
            except (AwayError, UnreachableError, OSError):
                if time.monotonic() > until:
                    raise
                self.again += 1
                self._stop.wait(0.2)

    async def _get(self, path: str) -> Any:
        async with gateway_client(resolve_access(Home.at(self._releases.home))) as client:
            return await client.get(path)

    def _ask(self) -> None:
        self.patiently("/v1/overview")
        self.asked += 1
        self._stop.wait(0.1)

    def _submit(self) -> None:
        done = self._releases.sluice("submit", str(self._pipeline), "--", str(self._releases.shared))
        if done.returncode == 0:
            self.jobs.append(done.stdout.strip())
            self.ended(self.jobs[-1])
        else:
            self.again += 1
            assert done.returncode == 3, done.stderr  # nobody was there: ask again

    def wait_for_job(self) -> None:
        """Wait until another job has been submitted and has started."""
        known = len(self.jobs)
        wait_until(lambda: len(self.jobs) > known, "no job was submitted", DEADLINE_SECONDS)
        job_id = self.jobs[-1]
        wait_until(lambda: self.patiently(f"/v1/jobs/{job_id}")["state"] != "CREATED", "it waits", DEADLINE_SECONDS)

    def ended(self, job_id: str) -> Any:
        """Wait until the job has ended; returns it."""

        def look() -> Any:
            job = self.patiently(f"/v1/jobs/{job_id}")
            return job if job["state"] in {"FINISHED", "FAILED", "CANCELED"} else None

        return wait_until(look, f"job {job_id} goes on", COMMAND_SECONDS, 0.5)


@pytest.mark.parametrize("to", [AFTER, BEFORE])
def test_no_job_and_no_request_is_lost_during_a_rolling_upgrade_and_downgrade(
    releases: Releases, tmp_path: Path, to: str
) -> None:
    """Upgrades to this release first, then goes back to the previous one."""
    pipeline = tmp_path / "sums.py"
    pipeline.write_text(PIPELINE, encoding="utf-8")
    with Load(releases, pipeline) as load:
        load.wait_for_job()
        before = releases.running()
        releases.use(to)
        for name in sorted(before, key=lambda each: ORDER.index(each.rstrip("-0123456789"))):
            releases.replace(name)
        load.wait_for_job()
        after = releases.running()
    assert {each.rstrip("-0123456789") for each in after} == set(ORDER)
    assert not set(before.values()) & set(after.values())
    assert load.failures == []
    assert load.asked > len(ORDER)
    for job_id in load.jobs:
        job = load.ended(job_id)
        assert job["state"] == "FINISHED", job["failure"]
    answers = [path.read_text() for path in releases.shared.iterdir()]
    assert len(answers) >= len(load.jobs)
    assert set(answers) == {ANSWER}
    assert tree_of(releases, after.values()) == {to}


def tree_of(releases: Releases, pids: Iterable[int]) -> set[str]:
    """The releases that these processes run; each process maps libraries of its environment."""
    names = set()
    for pid in pids:
        maps = Path(f"/proc/{pid}/maps").read_text()
        names |= {each for each in (BEFORE, AFTER) if str(releases.place / each) in maps}
    return names
