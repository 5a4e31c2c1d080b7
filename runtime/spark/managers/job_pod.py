"""Runs the driver or executor in a pod of Spark's own Kubernetes manager.

This replaces the ``entrypoint.sh`` of Spark's image (Spark 4.3, ``kubernetes/dockerfiles``) in Sluice's image.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.runtime.spark.errors import SparkError

STOP_SECONDS = 20.0
"""The time between SIGTERM and SIGKILL; Kubernetes gives a pod 30 s."""

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_([0-9]{1,4})")
_EXECUTOR_VALUES = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def job_pod_command(
    arguments: Sequence[str], environment: Mapping[str, str], *, spark_home: Path, java: Path
) -> list[str]:
    """The command for the ``arguments`` and ``environment`` that Spark passes to the container.

    Raises:
        SparkError: they are not those of a driver or an executor of Spark 4.
    """
    try:
        match arguments:
            case ["driver", *rest]:
                address = environment["SPARK_DRIVER_BIND_ADDRESS"]
                return [
                    str(spark_home / "bin" / "spark-submit"),
                    *("--conf", f"spark.driver.bindAddress={address}"),
                    *("--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"),
                    *("--deploy-mode", "client"),
                    *rest,
                ]
            case ["executor"]:
                memory = environment["SPARK_EXECUTOR_MEMORY"]
                return [
                    *(str(java), *_java_options(environment), f"-Xms{memory}", f"-Xmx{memory}"),
                    *("-cp", _class_path(environment, spark_home), _BACKEND),
                    *(part for option, name in _EXECUTOR_VALUES.items() for part in (option, environment[name])),
                ]
    except KeyError as error:
        raise SparkError(f"the environment has no {error.args[0]}", "Spark sets it in the pods it creates") from None
    raise SparkError(
        f"the container's arguments begin with {arguments[:1]}", "this is for pods of sluice submit --target kubernetes"
    )


def job_pod_environment(environment: Mapping[str, str], *, spark_home: Path, java_home: Path) -> dict[str, str]:
    """``environment`` with the variables for Spark, Java, and the Python that driver and executors share."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**python, **environment, "SPARK_HOME": str(spark_home), "JAVA_HOME": str(java_home)}


async def run_in_pod(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``command`` to its end; return its exit code, or 128 plus the number of the signal that killed it.

    Orphaned processes are reaped as well, because this is the first process of a container. On cancellation, the
    command gets SIGTERM, and SIGKILL after :data:`STOP_SECONDS`.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    # posix_spawn only starts the command and does not block.
    pid = os.posix_spawn(command[0], list(command), dict(environment), setsigdef=[signal.SIGPIPE])  # noqa: ASYNC221

    def reap() -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                found, status = os.waitpid(-1, os.WNOHANG)
                if found == 0:
                    return
                if found == pid and not ended.done():
                    code = os.waitstatus_to_exitcode(status)
                    ended.set_result(code if code >= 0 else 128 - code)

    loop.add_signal_handler(signal.SIGCHLD, reap)
    try:
        reap()  # the command may have ended before the handler was installed
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not ended.done():  # not yet reaped, so the pid cannot belong to another process
                os.kill(pid, number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(ended), STOP_SECONDS)
        raise
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)


def _java_options(environment: Mapping[str, str]) -> list[str]:
    found = {int(match[1]): environment[name] for name in environment if (match := _JAVA_OPTION.fullmatch(name))}
    return [found[number] for number in sorted(found)]


def _class_path(environment: Mapping[str, str], spark_home: Path) -> str:
    """The class path, configuration first, as in Spark's script. Empty entries would mean the working directory."""
    names = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_CLASSPATH", "SPARK_EXTRA_CLASSPATH")
    parts = [*(environment.get(name, "") for name in names), f"{spark_home}/jars/*"]
    return ":".join(each for each in parts if each)
