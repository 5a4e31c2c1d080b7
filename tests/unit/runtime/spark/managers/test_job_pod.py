"""The processes in a job's pod: the command that Spark requests, and an init process for its children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from sluice.runtime.spark.errors import SparkError
from sluice.runtime.spark.managers.job_pod import job_pod_command, job_pod_environment, run_in_pod
from tests.waiting import until

SPARK, JAVA = Path("/opt/spark"), Path("/opt/java/bin/java")
EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "pod",
}


def command(arguments: list[str], environment: dict[str, str]) -> list[str]:
    return job_pod_command(arguments, environment, spark_home=SPARK, java=JAVA)


def test_a_driver_is_submitted_in_its_own_pod() -> None:
    given = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///a.py", "--deploy-mode"]
    made = command(given, {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2"})
    assert made[0] == "/opt/spark/bin/spark-submit"
    assert made[1:7] == [
        "--conf", "spark.driver.bindAddress=10.0.0.2",
        "--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.2", "--deploy-mode", "client",
    ]  # fmt: skip
    assert made[7:] == given[1:]


def test_an_executor_gets_its_options_in_their_order() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 2, 0)}
    made = command(["executor"], {**EXECUTOR, **options, "SPARK_CONF_DIR": "/conf", "SPARK_CLASSPATH": ""})
    assert made[:7] == [str(JAVA), "-Dn=0", "-Dn=2", "-Dn=10", "-Xms512m", "-Xmx512m", "-cp"]
    assert made[7] == "/conf:/opt/spark/jars/*"
    assert made[8].endswith("KubernetesExecutorBackend")
    pairs = dict(zip(made[9::2], made[10::2], strict=True))
    assert pairs["--executor-id"] == "3"
    assert pairs["--podName"] == "pod"


@pytest.mark.parametrize("arguments", [[], ["sh", "-c", "id"], ["executor", "--more"], ["driver-py"]])
def test_arguments_for_neither_driver_nor_executor_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SparkError, match="arguments begin with"):
        command(arguments, EXECUTOR)


def test_a_missing_executor_variable_is_named_in_the_error() -> None:
    with pytest.raises(SparkError, match="SPARK_EXECUTOR_ID"):
        command(["executor"], {name: value for name, value in EXECUTOR.items() if name != "SPARK_EXECUTOR_ID"})


def test_a_job_can_choose_its_python_but_not_its_spark_or_java() -> None:
    chosen = {"PYSPARK_PYTHON": "/py", "SPARK_HOME": "/elsewhere", "OTHER": "1"}
    found = job_pod_environment(chosen, spark_home=SPARK, java_home=Path("/opt/java"))
    assert (found["PYSPARK_PYTHON"], found["SPARK_HOME"], found["JAVA_HOME"], found["OTHER"]) == (
        "/py", "/opt/spark", "/opt/java", "1"
    )  # fmt: skip
    assert found["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
async def test_the_exit_code_of_the_job_is_that_of_the_pod(script: str, code: int) -> None:
    assert await run_in_pod(["/bin/sh", "-c", script], dict(os.environ)) == code


async def test_ending_the_pod_terminates_the_job_gracefully(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    script = f"trap 'touch {ended}; exit 0' TERM; touch {begun}; while :; do sleep 0.05; done"
    running = asyncio.create_task(run_in_pod(["/bin/sh", "-c", script], dict(os.environ)))
    await until(begun.exists, "it has not begun")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.exists()


async def test_the_job_does_not_ignore_signals_that_python_ignores() -> None:
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    assert await run_in_pod(["/bin/sh", "-c", "kill -PIPE $$; exit 0"], dict(os.environ)) == 128 + signal.SIGPIPE
