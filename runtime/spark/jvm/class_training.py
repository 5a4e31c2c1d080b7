"""Which classes Spark's JVMs load: found out by running a small job on a driver and an executor of Spark's own.

The job has no identity and no data but its own. Driver and executor listen on loopback for the seconds that it takes,
with Spark's authentication by a secret of 256 bits and encryption, so nobody else of this machine gets at them.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sluice.core import write_secret
from sluice.runtime.spark.errors import ClassArchiveFailed, DriverFailed
from sluice.runtime.spark.java import Java, SparkDistribution
from sluice.runtime.spark.jvm.gateway_port import Gateway, read_gateway
from sluice.runtime.spark.jvm.options import MODULE_OPTIONS, SCALA_BINARY_VERSION, argument_file

TRAINING_TIMEOUT_SECONDS = 240
JOB = Path(__file__).with_name("class_training_job.py")
_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.05
_END_SECONDS = 30
_OUTPUT_CHARACTERS = 500


def loaded_classes(java: Java, spark: SparkDistribution, work: Path) -> Path:
    """A list of the classes that drivers and executors load, for ``-XX:SharedClassListFile``.

    Args:
        work: a private directory.

    Raises:
        ClassArchiveFailed: the job did not run to its end.
    """
    driver, executor = work / "driver.classes", work / "executor.classes"
    _run(java, spark, work, driver, executor)
    names: dict[str, None] = {}
    for each in (driver, executor):
        if not each.is_file():
            raise ClassArchiveFailed(f"the JVM wrote no {each.name}")
        names.update(dict.fromkeys(class_names(each.read_text())))
    classes = work / "classes.list"
    classes.write_text("\n".join(names) + "\n")
    return classes


def class_names(listed: str) -> list[str]:
    """The classes of a list that come from jars or from Java's own modules.

    Not those that the JVM makes by itself (``@lambda-proxy``) nor those of other class loaders (``source:``): where
    there is a Java agent, a JVM of Java 17 looks for the class file of each class that it takes from an archive, and
    dies (SIGSEGV in ``KlassFactory::check_shared_class_file_load_hook``) when there is none.
    """
    lines = (line.split() for line in listed.splitlines() if line and line[0] not in "#@")
    return [words[0] for words in lines if "source:" not in words]


def _conf(work: Path, executor: Path) -> dict[str, str]:
    return {
        "spark.master": "local-cluster[1,1,512]",
        "spark.app.name": "classes",
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.network.crypto.enabled": "true",
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.master.ui.port": "0",
        "spark.worker.ui.port": "0",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": f"-XX:DumpLoadedClassList={executor}",
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }


def _run(java: Java, spark: SparkDistribution, work: Path, driver: Path, executor: Path) -> None:
    options = [
        *MODULE_OPTIONS,
        "-Xmx512m",
        f"-Djava.io.tmpdir={work}",
        f"-XX:DumpLoadedClassList={driver}",
        *(f"-D{key}={value}" for key, value in _conf(work, executor).items()),
        "-cp",
        spark.class_path,
    ]
    argfile, info, output = work / "driver.args", work / "gateway", work / "output"
    write_secret(argfile, argument_file(options))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{java.executable.parent}:/usr/bin:/bin",
        "HOME": str(work),
        "TMPDIR": str(work),
        "LANG": "C.UTF-8",
        "SPARK_HOME": str(spark.home),
        "SPARK_LOCAL_IP": _LOOPBACK,
        "SPARK_CONF_DIR": str(work),
        "SPARK_WORKER_DIR": str(work / "worker"),
        "SPARK_SCALA_VERSION": SCALA_BINARY_VERSION,
        "PYSPARK_PYTHON": sys.executable,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
    }
    deadline = time.monotonic() + TRAINING_TIMEOUT_SECONDS
    with output.open("wb") as file:
        jvm = subprocess.Popen(
            [str(java.executable), f"@{argfile}", "org.apache.spark.api.python.PythonGatewayServer"],
            env=environment,
            cwd=work,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            gateway = _gateway(jvm, info, deadline)
            _run_job(environment, gateway, work, file.fileno(), deadline)
        except (ClassArchiveFailed, DriverFailed) as error:
            told = output.read_text(errors="replace")[-_OUTPUT_CHARACTERS:].strip()
            raise ClassArchiveFailed(f"{error}: {told}") from error
        finally:
            _end(jvm)


def _gateway(jvm: subprocess.Popen[bytes], info: Path, deadline: float) -> Gateway:
    while not info.exists():
        if jvm.poll() is not None or time.monotonic() > deadline:
            raise ClassArchiveFailed("Spark's JVM did not start")
        time.sleep(_POLL_SECONDS)
    return read_gateway(info.read_bytes())


def _run_job(environment: Mapping[str, str], gateway: Gateway, work: Path, output: int, deadline: float) -> None:
    try:
        run = subprocess.run(
            [sys.executable, "-P", str(JOB)],
            env={
                **environment,
                "PYSPARK_GATEWAY_PORT": str(gateway.port),
                "PYSPARK_GATEWAY_SECRET": gateway.secret,
            },
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClassArchiveFailed(f"the job did not run to its end: {error}") from error
    if run.returncode != 0:
        raise ClassArchiveFailed(f"the job ended with exit code {run.returncode}")


def _end(jvm: subprocess.Popen[bytes]) -> None:
    """In order, so that it writes down what it has loaded: it ends when its standard input does."""
    if jvm.stdin is not None:
        jvm.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        jvm.wait(_END_SECONDS)
    if jvm.poll() is None:
        jvm.kill()
        jvm.wait()
