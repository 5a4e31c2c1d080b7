"""How failed jobs are restarted: the settings of the cluster (section ``[restart]``), and a job's own settings.

The strategies and their settings are those of Flink ("Task Failure Recovery" in its documentation).
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

MAX_DELAY_SECONDS = 86_400.0
MAX_ATTEMPTS = 1_000_000

_Delay = Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_SECONDS)]
_Interval = Annotated[float, msgspec.Meta(gt=0, le=30 * MAX_DELAY_SECONDS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_ATTEMPTS)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)]
_Multiplier = Annotated[float, msgspec.Meta(ge=1, le=100)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class RestartStrategy(enum.StrEnum):
    """The strategy. ``DEFAULT`` is ``NONE`` until the job has a completed checkpoint, then ``EXPONENTIAL_DELAY``."""

    DEFAULT = "default"
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    EXPONENTIAL_DELAY = "exponential-delay"
    FAILURE_RATE = "failure-rate"


class RestartConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a failed job is restarted. Times are in seconds."""

    strategy: RestartStrategy = RestartStrategy.DEFAULT
    attempts: _Count = 3
    """fixed-delay: restarts before the job fails permanently."""
    delay: _Delay = 1.0
    """``fixed-delay`` and ``failure-rate``: seconds between a failure and the next attempt."""
    initial_backoff: _Delay = 1.0
    """``exponential-delay``: the first delay."""
    max_backoff: _Delay = 60.0
    """``exponential-delay``: the longest delay."""
    backoff_multiplier: _Multiplier = 1.5
    """exponential-delay: factor between one delay and the next."""
    reset_backoff_threshold: _Interval = 3600.0
    """exponential-delay: after this time without a failure the delay is reset."""
    jitter_factor: _Share = 0.1
    """exponential-delay: random change of each delay, as a share of it."""
    attempts_before_reset_backoff: _Count = 0
    """exponential-delay: consecutive restarts before the job fails permanently; 0: any number."""
    max_failures_per_interval: _Positive = 1
    """failure-rate: failures within the interval that are tolerated; with one more the job fails permanently."""
    failure_rate_interval: _Interval = 60.0
    """``failure-rate``: the interval."""


class RestartWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job's own settings in place of the cluster's :class:`RestartConfig`; None: the setting of the cluster."""

    strategy: RestartStrategy | None = None
    attempts: _Count | None = None
    delay: _Delay | None = None
    initial_backoff: _Delay | None = None
    max_backoff: _Delay | None = None
    backoff_multiplier: _Multiplier | None = None
    reset_backoff_threshold: _Interval | None = None
    jitter_factor: _Share | None = None
    attempts_before_reset_backoff: _Count | None = None
    max_failures_per_interval: _Positive | None = None
    failure_rate_interval: _Interval | None = None


def effective_restart_config(cluster: RestartConfig, job: RestartWish) -> RestartConfig:
    """Return the effective settings of a job: its own, and the cluster's for the rest."""
    wishes = {name: value for name, value in msgspec.structs.asdict(job).items() if value is not None}
    return msgspec.structs.replace(cluster, **wishes)
