"""How a driver attempt ends, with the real agent, JVM and Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil
import pytest

from sluice.runtime.rpc import RpcService
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TestPki
from tests.integration.spark.conftest import PIPELINES
from tests.integration.spark.small_cluster import RunningJob, Work, running_job
from tests.processes import descendants, runs
from tests.shared_folder import shared_folder

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


def any_runs(processes: Sequence[psutil.Process]) -> bool:
    """Whether any of the processes still runs; zombies do not count."""
    return any(runs(each) for each in processes)


def job_without_spark(
    pki: TestPki, spark: SparkRuntime, folder: Path, ending: str = "well"
) -> AbstractAsyncContextManager[RunningJob]:
    """Run a job whose pipeline starts no Spark: it is quick, and enough to test everything around Spark."""
    shared = shared_folder(folder)
    work = Work(PIPELINES / "no_spark.py", args=[str(shared), ending], shared=shared)
    return running_job(pki, folder / "job", spark, work)


async def test_an_agent_that_was_started_before_its_job_runs_it_in_the_drivers_directory(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    shared = shared_folder(tmp_path)
    work = Work(PIPELINES / "no_spark.py", args=[str(shared), "well"], shared=shared, spare=True)
    async with running_job(pki, tmp_path / "job", spark, work) as job:
        await job.until((shared / "running").exists)
        assert psutil.Process(job.agent.pid).cwd() == str(job.directory)
        (shared / "stop").touch()
        result = await job.result()
    assert result.succeeded, result.traceback


async def test_two_spark_contexts_run_in_a_row_with_a_submitted_module(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    """Each context gets its own executors; counters and versions continue from the first one."""
    work = Work(PIPELINES / "twice.py", files=[PIPELINES / "doubling.py"], executors=1)
    async with running_job(pki, tmp_path / "job", spark, work) as job:
        result = await job.result()
        assert result.succeeded, result.traceback
        assert len({each.app_id for each in job.master.registrations}) == 2
        assert job.master.progress.spark_jobs_finished == 2
        assert job.master.progress.tasks_finished == 4
        assert job.master.progress.tasks_running == 0
        stages = job.master.stages.stages  # of the second one, which has counted from 0 again
        assert [(stage.state, stage.tasks_finished, stage.tasks_running) for stage in stages] == [("FINISHED", 2, 0)]
        assert list(stages[0].task_ms) == sorted(stages[0].task_ms)
        assert len(stages[0].task_ms) == 5


@pytest.mark.parametrize("stage", ["plain", "barrier"])
async def test_a_pipeline_starts_before_its_executors_and_its_first_stage_is_spread_over_all(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path, stage: str
) -> None:
    """Spark itself would block in the constructor of the SparkContext, here for ever."""
    shared = shared_folder(tmp_path)
    conf = {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "3600s",
    }
    work = Work(PIPELINES / "before_executors.py", args=[str(shared), stage], conf=conf, shared=shared, held=2)
    async with running_job(pki, tmp_path / "job", spark, work) as job:
        await job.until((shared / "up").exists)
        assert not job.master.executors
        job.master.release()
        result = await job.result()
        assert result.succeeded, result.traceback
        assert (shared / "parallelism").read_text() == "2"
        assert len(set(json.loads((shared / "where").read_text()))) == 2
        assert "ERROR Inbox" not in job.log("driver.jvm.log")


async def test_tasks_start_on_the_first_executor_unless_the_job_sets_how_many_to_wait_for(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    """The data is partitioned for both all the same. The second never comes; Spark would wait for it."""
    shared = shared_folder(tmp_path)
    conf = {"spark.scheduler.maxRegisteredResourcesWaitingTime": "3600s"}
    work = Work(PIPELINES / "before_executors.py", args=[str(shared), "plain"], conf=conf, shared=shared, held=1)
    async with running_job(pki, tmp_path / "job", spark, work) as job:
        result = await job.result()
        assert result.succeeded, result.traceback
        assert (shared / "parallelism").read_text() == "2"
        assert len(set(json.loads((shared / "where").read_text()))) == 1


async def test_a_success_is_reported_while_the_jvm_is_still_ending(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    """The attempt's files are complete by then, and the JVM is still ended after its grace period."""
    work = Work(PIPELINES / "slow_end.py", executors=1)
    async with running_job(pki, tmp_path / "job", spark, work) as job:
        await job.until(job.master.succeeded.is_set)
        jvms = job.processes("java")
        assert any_runs(jvms)
        assert not job.master.finished.done()
        assert job.log("driver.stdout") == "done\n"
        result = await job.result()
        agent = await job.agent.wait()
        assert not any_runs(jvms)
    assert result.succeeded
    assert agent.code == 0


async def test_failing_pipeline_is_reported_with_its_traceback(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    (shared_folder(tmp_path) / "stop").touch()
    async with job_without_spark(pki, spark, tmp_path, "fail") as job:
        result = await job.result()
        agent = await job.agent.wait()
    assert not result.succeeded
    assert result.exit_code == 1
    assert result.error == "RuntimeError: the pipeline does not like twelve"
    assert "ValueError: invalid literal" in result.traceback
    assert "no_spark.py" in result.traceback
    assert agent.code == 0  # the report has arrived


async def test_a_driver_whose_jvm_died_fails_even_if_python_succeeds(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    """The pipeline ends with exit code 0 all the same."""
    async with job_without_spark(pki, spark, tmp_path) as job:
        await job.until((tmp_path / "shared" / "running").exists)
        job.processes("java")[0].kill()
        (shared_folder(tmp_path) / "stop").touch()
        result = await job.result()
    assert not result.succeeded
    assert "JVM ended before the pipeline: killed by SIGKILL" in result.error


async def test_driver_that_lost_its_jobmaster_stops(pki: TestPki, spark: SparkRuntime, tmp_path: Path) -> None:
    """Fencing: without a JobMaster it ends by itself after its patience (5 s here)."""
    async with job_without_spark(pki, spark, tmp_path) as job:
        await job.until((tmp_path / "shared" / "running").exists)
        children = descendants(job.agent.pid)
        service = job.master.service
        assert isinstance(service, RpcService)
        await service.close()
        agent = await job.agent.wait()
    assert agent.code == 1
    assert not any_runs(children)
    assert not job.master.finished.done()


async def test_killed_agent_leaves_nothing_behind(pki: TestPki, spark: SparkRuntime, tmp_path: Path) -> None:
    async with job_without_spark(pki, spark, tmp_path) as job:
        await job.until((tmp_path / "shared" / "running").exists)
        children = descendants(job.agent.pid)
        assert {"java", "python"} <= {Path(child.exe()).name.rstrip("0123456789.") for child in children}
        psutil.Process(job.agent.pid).kill()
        await job.until(lambda: not any_runs(children))


async def test_cancelled_job_ends_though_its_task_would_run_for_an_hour(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    work = Work(PIPELINES / "endless.py", executors=1)
    async with running_job(pki, tmp_path / "job", spark, work) as job:
        await job.until(lambda: job.master.progress.tasks_running == 1)
        await job.driver_gateway().cancel(10.0)
        result = await job.result()
    assert not result.succeeded
    assert result.error == "the driver was cancelled"
    assert "cancelled" in result.traceback.lower()


@pytest.mark.parametrize("key", ["spark.ssl.rpc.enabled", "spark.sql.extensions"])
async def test_a_pipeline_that_changes_a_setting_of_the_launcher_gets_no_spark(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path, key: str
) -> None:
    """What a submission may not set, the pipeline's own code may not set either; the error names the key."""
    async with running_job(pki, tmp_path / "job", spark, Work(PIPELINES / "rebel.py", (key,))) as job:
        result = await job.result()
        assert job.master.registrations == []
    assert not result.succeeded
    assert f"a job may not set {key}" in result.traceback


async def test_forbidden_setting_of_the_submission_fails_the_driver(
    pki: TestPki, spark: SparkRuntime, tmp_path: Path
) -> None:
    """The JobManager checks at submission; the agent does not rely on it."""
    work = Work(PIPELINES / "rebel.py", conf={"spark.executor.extraJavaOptions": "-javaagent:evil.jar"})
    async with running_job(pki, tmp_path / "job", spark, work) as job:
        result = await job.result()
    assert not result.succeeded
    assert "spark.executor.extraJavaOptions" in result.error
