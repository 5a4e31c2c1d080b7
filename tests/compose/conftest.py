"""A cluster of containers that all tests share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.compose.engine import ENVOY_IMAGE, IMAGE, Stack, run, sluice
from tests.free_ports import free_port

SHOWN_LINES = 8
"""Of each service's log, in the report of a failed test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the logs to a failure report: the containers are gone before anybody can look."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.failed and isinstance(stack, Stack):
        for service in (*stack.jobmanagers, *stack.zookeepers, *stack.taskmanagers):
            try:
                log = stack.said(service, SHOWN_LINES)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:  # must not hide the failure itself
                log = f"not available: {error}"
            report.sections.append((f"log of {service}", log))
    return report


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A healthy cluster with one slot per TaskManager.

    A job with three executors therefore runs on all TaskManagers.
    """
    directory = tmp_path_factory.mktemp("compose") / "set"
    started = Stack(f"sluice-test-{os.getpid()}", directory, free_port())
    sluice(
        *("compose", "init", directory, "--name", started.name, "--port", str(started.port)),
        *("--slots", "1", "--image", IMAGE, "--envoy-image", ENVOY_IMAGE),
    )
    try:
        started.up()
        started.prepare_client()
        yield started
    finally:
        run("docker", "ps", "--all", check=False)
        started.compose("down", "--volumes", "--timeout", "30", check=False)


@pytest.fixture(scope="session")
def slow_sum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline that runs for a while on three executors, shuffles, and prints its result."""
    file = tmp_path_factory.mktemp("pipelines") / "slow_sum.py"
    file.write_text(SLOW_SUM)
    return file


SLOW_SUM = """
import sys
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("slow sum").getOrCreate()
seconds = float(sys.argv[1])


def slowly(value):
    time.sleep(seconds)
    return value % 7, value


pairs = spark.sparkContext.parallelize(range(1, 91), 90).map(slowly).reduceByKey(lambda a, b: a + b, 6)
result = dict(pairs.collect())
print("keys", len(result), "total", sum(result.values()))
spark.stop()
"""
