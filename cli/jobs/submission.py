"""A submission as the command hands it on, and where it can run. Values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class SubmitTarget(enum.StrEnum):
    """Where a submission runs."""

    SESSION = "session"
    """The cluster that runs already, through its gateway."""
    PER_JOB = "per-job"
    """A cluster that is started on this machine for this submission alone."""
    YARN = "yarn"
    """Spark on the YARN of ``HADOOP_CONF_DIR``."""
    KUBERNETES = "kubernetes"
    """Spark on the Kubernetes of ``[kubernetes]``."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A pipeline as :meth:`sluice.client.rest_client.GatewayClient.submit` wants it."""

    pipeline: Path
    request: Mapping[str, object]
    files: tuple[tuple[str, Path], ...] = ()
