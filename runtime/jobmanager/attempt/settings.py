"""Settings of attempts: times, limits, and what is known of an attempt that began under an earlier leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.messages import Seal

LEASE_MARGIN_SECONDS = 5.0
"""What a driver whose lease is over may need to end its processes (see sluice.runtime.spark.driver.agent)."""


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """What every attempt of this cluster goes by; times are seconds."""

    driver_start_timeout: float
    cancel_grace: float
    failure_budget: int = 0
    """Executors of a job that may end by themselves; 0: reckoned from their number."""
    slot_idle_timeout: float = float("inf")
    """How long slots are held before there is a SparkContext."""
    drain_timeout: float = 300.0
    """How long executors may take to end in order when their TaskManager is drained."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings of all jobs; a job's own go before them."""
    lease: float = 0.0
    """How long a driver goes on without an answer of its JobMaster."""
    seal: Seal = False
    """Whether jobs seal what they give to the shuffle service."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The attempt has begun under an earlier leader, and its driver may run (ADR 103).

    Attributes:
        taskmanager: where it was about to be launched.
        seconds: after which it is surely gone, unless it has registered.
    """

    taskmanager: str
    seconds: float
