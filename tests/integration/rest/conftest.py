"""REST of a real JobManager in this process, without Spark: drivers are Python processes."""

from __future__ import annotations

from tests.integration.runtime.conftest import cluster

__all__ = ["cluster"]
