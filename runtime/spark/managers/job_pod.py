"""The command of a driver's or executor's pod on Spark's own Kubernetes manager, and the process that runs it.

What Spark's image does in its ``entrypoint.sh`` (Spark 4.3, ``kubernetes/dockerfiles``), for Sluice's image.
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
"""Between SIGTERM and SIGKILL; Kubernetes gives a pod 30 s."""

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
    """What runs for ``arguments``, which Spark gives to the container, and ``environment``, which it sets.

    Raises:
        SparkError: they are not what Spark 4 gives to a driver or an executor.
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
        raise SparkError(f"the environment has no {error.args[0]}", "Spark sets it in the pods that it makes") from None
    raise SparkError(
        f"the container's arguments begin with {arguments[:1]}", "this is for pods of sluice submit --target kubernetes"
    )


def job_pod_environment(environment: Mapping[str, str], *, spark_home: Path, java_home: Path) -> dict[str, str]:
    """``environment`` with Spark, Java, and the Python that driver and executors have in common."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**python, **environment, "SPARK_HOME": str(spark_home), "JAVA_HOME": str(java_home)}


async def run_in_pod(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``command`` to its end; returns its exit code, or 128 and the number of the signal that ended it.

    Processes whose parents have ended are waited for as well, because this is the first process of a container. When it
    is cancelled, the command gets SIGTERM.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    # It starts the command, and waits for nothing.
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
        reap()  # it may have ended before the handler was there
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not ended.done():  # its number is not another's
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
    """Configuration first, as in Spark's own script; empty entries would mean the working directory."""
    names = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_CLASSPATH", "SPARK_EXTRA_CLASSPATH")
    parts = [*(environment.get(name, "") for name in names), f"{spark_home}/jars/*"]
    return ":".join(each for each in parts if each)
