"""An archive of Spark's classes, created and used by drivers and executors with their agent and guard."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sluice.core import make_private_directory
from sluice.runtime.spark import checksum_file, ensure_plugin
from sluice.runtime.spark.evidence import read_evidence
from sluice.runtime.spark.java import INSTALLED, Java, find_java, find_preferred_java, find_spark
from sluice.runtime.spark.jvm.class_archive import find_class_archive, has_aot_caches
from sluice.runtime.spark.jvm.command import CLASSES_LOG, SparkRuntime, find_spark_runtime
from sluice.runtime.spark.training import make_class_archive
from tests.hostile import TestPki
from tests.integration.spark.conftest import PIPELINES
from tests.integration.spark.small_cluster import RunningJob, Work, reports_of, running_job
from tests.processes import command_line, descendants
from tests.shared_folder import shared_folder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def javas() -> list[Java]:
    """One installed Java of each major version, including the one on the PATH."""
    found = {find_java().major: find_java()}
    for pattern in INSTALLED:
        for home in sorted(Path("/").glob(pattern.lstrip("/"))):
            if (home / "release").is_file():
                java = find_java({"JAVA_HOME": str(home)})
                found.setdefault(java.major, java)
    return [found[major] for major in sorted(found)]


@pytest.fixture(scope="module", params=javas(), ids=lambda java: f"java-{java.major}")
def spark(request: pytest.FixtureRequest) -> SparkRuntime:
    """Spark on each Java, with a class archive in the cache."""
    java: Java = request.param
    make_class_archive(java=java)
    return find_spark_runtime(java=java)


NO_FIT = {False: "Unable to map shared spaces", True: "The AOT cache"}


def mapped(process: psutil.Process) -> set[str]:
    """The files that a process has mapped."""
    return {each.path for each in process.memory_maps()}


async def one_round(job: RunningJob, folder: Path) -> None:
    """Have the pipeline do its work once."""
    (folder / "go-1").touch()
    await job.until(lambda: (folder / "result-1").exists() or job.master.finished.done())
    assert (folder / "result-1").exists(), job.log("driver.stderr")


def rounds(folder: Path) -> Work:
    """A Python function and a shuffle, on one executor."""
    return Work(PIPELINES / "rounds.py", args=[str(folder)], executors=1, shared=folder)


async def test_driver_and_executor_use_the_class_archive_and_keep_mutual_tls(
    spark: SparkRuntime, tmp_path: Path
) -> None:
    archive = str(spark.class_archive)
    async with running_job(TestPki(tmp_path / "pki"), tmp_path / "job", spark, rounds(shared_folder(tmp_path))) as job:
        await one_round(job, tmp_path / "shared")
        (executor,) = job.master.executors.values()
        for each in (job.processes("java")[0], psutil.Process(executor.pid)):
            assert archive in mapped(each)
            log = (Path(each.cwd()) / CLASSES_LOG).read_text(encoding="utf-8")
            assert ("Using AOT-linked classes: true" in log) is has_aot_caches(spark.java)
        assert read_evidence(reports_of(job.identity_dir)), "the driver's connections were not under mutual TLS"
        (tmp_path / "shared" / "stop").touch()
        assert (await job.result()).succeeded


async def test_a_jvm_ignores_an_unusable_class_archive_and_logs_it(spark: SparkRuntime, tmp_path: Path) -> None:
    assert spark.class_archive is not None
    other = tmp_path / f"other{spark.class_archive.suffix}"
    other.write_bytes(b"no archive" * 1000)
    unfit = replace(spark, class_archive=other)
    async with running_job(TestPki(tmp_path / "pki"), tmp_path / "job", unfit, rounds(shared_folder(tmp_path))) as job:
        await one_round(job, tmp_path / "shared")
        (executor,) = job.master.executors.values()
        log = Path(psutil.Process(executor.pid).cwd()) / CLASSES_LOG
        assert NO_FIT[has_aot_caches(spark.java)] in await asyncio.to_thread(log.read_text)
        (tmp_path / "shared" / "stop").touch()
        assert (await job.result()).succeeded


def test_an_existing_class_archive_is_not_made_again(spark: SparkRuntime) -> None:
    assert spark.class_archive is not None
    before = spark.class_archive.stat()
    assert (
        make_class_archive(java=spark.java) == find_class_archive(spark.java, spark.distribution) == spark.class_archive
    )
    assert spark.class_archive.stat().st_ino == before.st_ino


def rehearsing(maker: int) -> psutil.Process | None:
    """The JVM of the driver with which an archive maker rehearses."""
    for child in descendants(maker):
        if "org.apache.spark.api.python.PythonGatewayServer" in command_line(child):
            return child
    return None


def test_a_rehearsal_runs_in_its_own_network_namespace_and_leaves_nothing_when_killed(tmp_path: Path) -> None:
    plugin, cache = ensure_plugin(), make_private_directory(tmp_path / "sluice")
    for file in (plugin, checksum_file(plugin)):
        shutil.copy2(file, cache / file.name)
    maker = subprocess.Popen(
        [sys.executable, "-P", "-m", "sluice.runtime.spark.training", "--background"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    try:
        deadline = time.monotonic() + 300
        while (driver := rehearsing(maker.pid)) is None:
            assert maker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert Path(f"/proc/{driver.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        assert os.sched_getscheduler(driver.pid) == os.SCHED_IDLE
        below = descendants(maker.pid)
    finally:
        maker.kill()
        maker.wait()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive
    assert {path.suffix for path in cache.iterdir() if path.is_file()} == {".jar", ".json", ".lock"}
    java, spark = find_preferred_java(), find_spark()
    assert find_class_archive(java, spark, cache=cache) is None
