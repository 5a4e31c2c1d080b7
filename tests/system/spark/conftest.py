"""The PKI and the Spark of the integration tests."""

from __future__ import annotations

from tests.integration.spark.conftest import pki, spark

__all__ = ["pki", "spark"]
