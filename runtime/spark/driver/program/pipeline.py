"""The program of a driver's Python process, its command and its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.spark.driver.program.places import DriverPlaces
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.spark.job_python import job_python_environment
from sluice.runtime.spark.jvm import NO_PACKAGES, Command, Gateway, Packages, SparkRuntime


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The user's Python program, and the files that are also distributed to every executor."""

    script: Path
    args: Sequence[str] = ()
    files: Sequence[Path] = ()
    packages: Packages = NO_PACKAGES
    python: str = ""
    """Path of the job's own Python, relative to the directory of ``script``; empty: the Python of this process."""


def python_environment(spark: SparkRuntime, places: DriverPlaces) -> dict[str, str]:
    """The part of the environment of a driver's Python that does not depend on its program."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(places.work),
        "LANG": "C.UTF-8",
        "TMPDIR": str(places.scratch),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SPARK_HOME": str(spark.distribution.home),
    }


def python_command(
    pipeline: Pipeline, gateway: Gateway, spec: DriverSpec, spark: SparkRuntime, places: DriverPlaces
) -> Command:
    """The command of the user's program, which connects to Spark over ``gateway``. Its environment has a secret."""
    env = {
        **python_environment(spark, places),
        "SPARK_LOCAL_IP": spec.host,
        "PYSPARK_PYTHON": sys.executable,
        **_packages_environment(pipeline, spark),
        "PYSPARK_GATEWAY_PORT": str(gateway.port),
        "PYSPARK_GATEWAY_SECRET": gateway.secret,
        "SLUICE_JOB_ID": spec.job_id,
    }
    python = str(pipeline.script.parent / pipeline.python) if pipeline.python else sys.executable
    return Command((python, str(pipeline.script), *pipeline.args), env, {})


def _packages_environment(pipeline: Pipeline, spark: SparkRuntime) -> Mapping[str, str]:
    packages = pipeline.packages.environment()
    if not pipeline.python:
        return packages
    return job_python_environment(pipeline.python, spark.distribution.home, packages)
