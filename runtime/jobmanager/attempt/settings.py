"""Settings of attempts: times and limits, and the data to resume an attempt of an earlier leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.messages import Seal

LEASE_MARGIN_SECONDS = 5.0
"""Time that a driver may need to end its processes after its lease (see sluice.runtime.spark.driver.agent)."""


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """Settings of all attempts of this cluster; times are in seconds."""

    driver_start_timeout: float
    cancel_grace: float
    failure_budget: int = 0
    """How many executors of a job may end by themselves; 0: computed from their number."""
    slot_idle_timeout: float = float("inf")
    """How long slots are held while there is no SparkContext."""
    drain_timeout: float = 300.0
    """How long executors may take to end gracefully when their TaskManager is drained."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings of all jobs; a job's own settings override them."""
    lease: float = 0.0
    """How long a driver continues without an answer from its JobMaster."""
    seal: Seal = False
    """Whether jobs seal (encrypt) the data that they give to the shuffle service."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Data to resume an attempt that began under an earlier leader, and whose driver may still run (ADR 103).

    Attributes:
        taskmanager: where the driver was about to be launched.
        seconds: after this time the driver is certainly gone, unless it has registered.
    """

    taskmanager: str
    seconds: float
