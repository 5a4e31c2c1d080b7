"""Builds the command of an executor: Spark's own, built by :mod:`sluice.runtime.spark.jvm.command`."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Protocol

from sluice.runtime.messages import ExecutorLaunch
from sluice.runtime.spark.jvm import (
    Command,
    JvmPlace,
    SparkRuntime,
    executor_command,
    find_class_archive,
    find_spark_runtime,
    has_class_archive,
    jvm_environment,
    jvm_options,
    waiting_command,
)


class ExecutorLauncher(Protocol):
    """Builds the command of an executor, but does not start it."""

    def prepare(self) -> None:
        """Find or build what executors need, once, before slots are offered; takes seconds. Raises what is missing."""
        ...

    def command(self, launch: ExecutorLaunch, place: JvmPlace) -> Command:
        """The command of one executor; raises ``ForbiddenSparkConf`` if the driver sets a forbidden Spark setting."""
        ...

    def spark(self) -> SparkRuntime | None:
        """The Java and Spark installation of drivers' JVMs; None if each driver agent finds it itself."""
        ...


class WaitingLauncher(Protocol):
    """Builds the command of a warm JVM that waits to become an executor."""

    def spark(self) -> SparkRuntime:
        """The Java and Spark installation of the commands; a different object after a change."""
        ...

    def waiting(self, place: JvmPlace, memory_mb: int) -> Command:
        """The command of a JVM that waits in ``place`` with a heap of ``memory_mb`` MiB."""
        ...


class SparkExecutorLauncher:
    """Launches Spark's own executors with Sluice's security provider.


    Args:
        vector_api: enable the Vector API in JVMs even where it makes their start slower.
    """

    def __init__(self, *, vector_api: bool = False) -> None:
        self._vector_api = vector_api
        self._spark: SparkRuntime | None = None
        self._class_search: threading.Thread | None = None

    def prepare(self) -> None:
        """Find Java and Spark, and build the plugin if it is missing; raises what cannot be found."""
        self._spark = find_spark_runtime(vector_api=self._vector_api)

    def command(self, launch: ExecutorLaunch, place: JvmPlace) -> Command:
        """The command of one executor; raises ``ForbiddenSparkConf``."""
        return executor_command(launch, self.spark(), place)

    def spark(self) -> SparkRuntime:
        """The Java and Spark installation of all JVMs of this TaskManager."""
        spark = self._spark = self._spark or find_spark_runtime(vector_api=self._vector_api)
        self._find_classes_in_background(spark)
        return spark

    def waiting(self, place: JvmPlace, memory_mb: int) -> Command:
        """The command of a JVM that waits to become an executor."""
        spark = self.spark()
        options = jvm_options(spark, place, memory_mb)
        env = jvm_environment(spark, place.work, place.temp, place.host)
        return waiting_command(spark, options, env, temp_dir=place.temp, argfile=place.work / "waiting.args")

    def _find_classes_in_background(self, spark: SparkRuntime) -> None:
        """Find a class archive that was created since the start. The check is slow, so later executors use it."""
        if (
            spark.class_archive is None
            and spark.may_use_archive
            and self._class_search is None
            and has_class_archive(spark.java, spark.distribution)
        ):
            self._class_search = threading.Thread(target=self._use_class_archive, args=(spark,), daemon=True)
            self._class_search.start()

    def _use_class_archive(self, spark: SparkRuntime) -> None:
        self._spark = replace(spark, class_archive=find_class_archive(spark.java, spark.distribution))
