"""An archive of Spark's classes as it is made and used: by drivers and executors with their agent and their guard."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sluice.runtime.spark.evidence import read_evidence
from sluice.runtime.spark.jvm.class_archive import find_class_archive, make_class_archive
from sluice.runtime.spark.jvm.command import CLASSES_LOG, SparkRuntime, find_spark_runtime
from tests.hostile import TestPki
from tests.integration.spark.conftest import PIPELINES
from tests.integration.spark.small_cluster import RunningJob, Work, reports_of, running_job
from tests.shared_folder import shared_folder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark() -> SparkRuntime:
    """Spark with an archive in the cache, where driver agents find it too."""
    make_class_archive()
    return find_spark_runtime()


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


async def test_driver_and_executor_use_it_and_are_guarded_as_ever(spark: SparkRuntime, tmp_path: Path) -> None:
    archive = str(spark.class_archive)
    async with running_job(TestPki(tmp_path / "pki"), tmp_path / "job", spark, rounds(shared_folder(tmp_path))) as job:
        await one_round(job, tmp_path / "shared")
        (executor,) = job.master.executors.values()
        assert archive in mapped(job.processes("java")[0])
        assert archive in mapped(psutil.Process(executor.pid))
        assert read_evidence(reports_of(job.identity_dir)), "the driver's connections were not under mutual TLS"
        (tmp_path / "shared" / "stop").touch()
        assert (await job.result()).succeeded


async def test_a_jvm_that_it_does_not_fit_starts_without_it_and_says_so(spark: SparkRuntime, tmp_path: Path) -> None:
    other = tmp_path / "other.jsa"
    other.write_bytes(b"no archive" * 1000)
    unfit = replace(spark, class_archive=other)
    async with running_job(TestPki(tmp_path / "pki"), tmp_path / "job", unfit, rounds(shared_folder(tmp_path))) as job:
        await one_round(job, tmp_path / "shared")
        (executor,) = job.master.executors.values()
        log = Path(psutil.Process(executor.pid).cwd()) / CLASSES_LOG
        assert "Unable to map shared spaces" in await asyncio.to_thread(log.read_text)
        (tmp_path / "shared" / "stop").touch()
        assert (await job.result()).succeeded


def test_it_is_made_once(spark: SparkRuntime) -> None:
    assert spark.class_archive is not None
    before = spark.class_archive.stat()
    assert make_class_archive() == find_class_archive(spark.java, spark.distribution) == spark.class_archive
    assert spark.class_archive.stat().st_ino == before.st_ino
