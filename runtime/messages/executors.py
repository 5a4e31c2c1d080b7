"""Executors: how many are wanted, how each is launched, how it ends."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.core import TraceParent
from sluice.runtime.messages.base import Message
from sluice.runtime.messages.jobs import GivenSecret
from sluice.runtime.messages.tokens import TokenFiles

MAX_LISTENER_HOSTS = 10_000
"""Hosts on which processes of one job listen on the same port."""


GIVE_WAY_SECONDS = 15.0
"""How long an executor that starts gives way to another one of its job that starts at the same time."""


class ExecutorLaunch(Message, frozen=True):
    """Everything a TaskManager needs to start one Spark executor in a slot.

    ``startup_conf`` and ``java_options`` come from the driver (already stripped of what a job may not
    set); the TaskManager composes the command line itself. ``spark_auth_secret`` never reaches argv.
    """

    job_id: str
    allocation_id: str
    executor_id: int
    app_id: str
    driver_url: str
    resource_profile_id: int
    cores: int
    memory_mb: int
    startup_conf: dict[str, str]
    java_options: tuple[str, ...]
    spark_auth_secret: str
    python: str
    trace: TraceParent = ""
    checkpoints: str = ""
    """URL below which the job's streaming queries keep their checkpoints, to which executors write."""
    attempt: int = 0
    """Of the driver that wants it."""
    token_files: TokenFiles = ()
    secrets: tuple[GivenSecret, ...] = ()

    def __repr__(self) -> str:
        return f"<ExecutorLaunch of executor {self.executor_id} of job {self.job_id}>"  # never the secret


class ExecutorExit(Message, frozen=True):
    """How an executor ended. ``by_application`` tells Spark whether to count it against the job."""

    executor_id: int
    exit_code: int
    by_application: bool
    reason: str
    host: str = ""
    host_lost: bool = False


class ExecutorExcess(Message, frozen=True):
    """Which bound an executor has exceeded, for which it was or is about to be ended: a sentence."""

    executor_id: int
    reason: str


class CsrToSign(Message, frozen=True):
    """A certificate request (PEM) for executor ``executor_id``; its key never leaves the TaskManager."""

    executor_id: int
    csr_pem: bytes


class SparkRegistration(Message, frozen=True):
    """The driver's SparkContext is up: where executors find it and what they must be started with."""

    app_id: str
    driver_url: str
    startup_conf: dict[str, str]
    java_options: tuple[str, ...]
    executor_memory_mb: int
    executor_cores: int
    live_executors: tuple[int, ...] = ()


MAX_EXECUTOR_CORES = 1024

MAX_EXECUTOR_MEMORY_MB = 1 << 24
"""Larger executors are not asked for: 16 TiB."""

_MAX_JAVA_INT = (1 << 31) - 1
"""What Spark says when it wants any number."""


class ExecutorTarget(Message, frozen=True):
    """How many executors of one Spark resource profile the driver wants.

    A driver is not believed: what is out of these bounds does not get as far as its JobMaster.
    """

    resource_profile_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    total: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXECUTOR_CORES)]
    memory_mb: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXECUTOR_MEMORY_MB)]


class ExecutorTargets(Message, frozen=True):
    """The driver's latest wish; level-triggered: a higher ``version`` replaces everything before."""

    version: int
    targets: tuple[ExecutorTarget, ...]
