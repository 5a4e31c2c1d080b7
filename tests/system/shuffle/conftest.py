"""One compiled plugin and one PKI for all tests of this folder; its modules start the jobs."""

from __future__ import annotations

import pytest

from sluice.runtime.spark.jvm.command import SparkRuntime, find_spark_runtime
from tests.hostile import TestPki


@pytest.fixture(scope="session")
def spark() -> SparkRuntime:
    """Java, Spark and the plugin."""
    return find_spark_runtime()


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    """Authorities for all jobs of the session."""
    return TestPki(tmp_path_factory.mktemp("pki"))
