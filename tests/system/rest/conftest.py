"""A whole local cluster with Spark."""

from __future__ import annotations

from tests.integration.cluster.conftest import cluster

__all__ = ["cluster"]
