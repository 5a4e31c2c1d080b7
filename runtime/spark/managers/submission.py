"""The parts of a submission that all of Spark's cluster managers share: Spark's configuration with Sluice's agent.

No I/O. Nothing here is secret: the configuration refers to identities only by their path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluice.runtime.messages import SlotProfile
from sluice.runtime.spark.jvm import check_unreserved, default_conf, security_conf

DEFAULT_SIZE = SlotProfile(cores=1, memory_mb=768)


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A job for another cluster manager, with the same content as a submission to a session cluster.

    Attributes:
        name: name of the job.
        pipeline: the Python program.
        args: arguments of the program.
        files: files next to the program.
        spark_conf: the job's own settings.
        executors, executor: number of executors, and the size of each.
        driver_memory_mb: heap of the driver in MiB.
    """

    name: str
    pipeline: Path
    args: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    executors: int = 2
    executor: SlotProfile = DEFAULT_SIZE
    driver_memory_mb: int = 768


@dataclass(frozen=True, slots=True)
class Rendering:
    """Everything needed to submit a job: ``files`` by name, and the arguments of ``spark-submit``."""

    files: Mapping[str, bytes]
    arguments: tuple[str, ...]


def common_conf(job: ForeignJob, *, agent: str, identity: str) -> dict[str, str]:
    """Spark's configuration for any cluster manager.

    Args:
        job: the job to submit.
        agent: path of the plugin's jar on the machines that run the JVMs.
        identity: directory with the identity on these machines.

    Raises:
        ForbiddenSparkConf: the job sets a reserved setting.
    """
    options = f"-javaagent:{agent}={identity} -Dsluice.tls.engine=jdk"
    return {
        **default_conf(),
        **check_unreserved(job.spark_conf),
        **security_conf(),
        "spark.app.name": job.name,
        "spark.submit.deployMode": "cluster",
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executor.instances": str(job.executors),
        "spark.executor.cores": str(job.executor.cores),
        "spark.executor.memory": f"{job.executor.memory_mb}m",
        "spark.driver.memory": f"{job.driver_memory_mb}m",
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
    }


def properties(conf: Mapping[str, str]) -> bytes:
    """Encode ``conf`` as a Java properties file: ISO-8859-1 with escapes (java.util.Properties)."""
    return "".join(f"{_escape(key, key=True)}={_escape(value)}\n" for key, value in sorted(conf.items())).encode(
        "ascii"
    )


def _escape(text: str, *, key: bool = False) -> str:
    escaped = []
    for position, character in enumerate(text):
        if character == "\\" or (key and character in "=: ") or (character in " #!" and position == 0):
            escaped.append("\\" + character)
        elif character.isascii() and character.isprintable():
            escaped.append(character)
        else:
            units = character.encode("utf-16-be")
            escaped += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(escaped)
