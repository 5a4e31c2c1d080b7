"""What command runs an executor: Spark's, composed by :mod:`runtime.spark.command`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.messages import ExecutorLaunch
from runtime.spark.command import Command, SparkRuntime, executor_command, find_spark_runtime


@dataclass(frozen=True, slots=True)
class ExecutorPlace:
    """Where one executor runs: its directories and the address it listens on."""

    identity: Path
    work: Path
    temp: Path
    host: str


class ExecutorLauncher(Protocol):
    """Composes the command of an executor; starting it is not its task."""

    def prepare(self) -> None:
        """Find or build everything needed, once, before slots are offered; may take seconds; raises what is missing."""
        ...

    def command(self, launch: ExecutorLaunch, place: ExecutorPlace) -> Command:
        """The command of one executor; raises ``ForbiddenSparkConf`` when the driver wants what it must not."""
        ...


class SparkExecutorLauncher:
    """Spark's own executors, with our security provider."""

    def __init__(self) -> None:
        self._spark: SparkRuntime | None = None

    def prepare(self) -> None:
        """See :class:`ExecutorLauncher`."""
        self._spark = find_spark_runtime()

    def command(self, launch: ExecutorLaunch, place: ExecutorPlace) -> Command:
        """See :class:`ExecutorLauncher`."""
        spark = self._spark or find_spark_runtime()
        return executor_command(
            launch,
            spark=spark,
            identity_dir=place.identity,
            work_dir=place.work,
            temp_dir=place.temp,
            host=place.host,
        )
