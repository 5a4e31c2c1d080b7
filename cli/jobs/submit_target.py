"""Where a submission can run."""

from __future__ import annotations

import enum


class SubmitTarget(enum.StrEnum):
    """Where a submission runs."""

    SESSION = "session"
    """The cluster that runs already, through its gateway."""
    PER_JOB = "per-job"
    """A cluster that is started on this machine only for this submission."""
    YARN = "yarn"
    """Spark on the YARN of ``HADOOP_CONF_DIR``."""
    KUBERNETES = "kubernetes"
    """Spark on the Kubernetes of ``[kubernetes]``."""
