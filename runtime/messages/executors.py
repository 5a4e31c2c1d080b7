"""Messages about executors: how many are wanted, their launch, and their end."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.core import TraceParent
from sluice.runtime.messages.base import Message
from sluice.runtime.messages.jobs import GivenSecret
from sluice.runtime.messages.tokens import TokenFiles

MAX_LISTENER_HOSTS = 10_000
"""Maximum number of hosts on which processes of one job listen on the same port."""


GIVE_WAY_SECONDS = 15.0
"""Seconds for which a starting executor yields the processors to another executor of its job that starts as well."""


class ExecutorLaunch(Message, frozen=True):
    """Everything a TaskManager needs to start one Spark executor in a slot.

    ``startup_conf`` and ``java_options`` come from the driver, without settings that a job may not make. The
    TaskManager composes the command line itself. ``spark_auth_secret`` never appears in argv.
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
    """URL below which the job's streaming queries keep their checkpoints; executors write there."""
    attempt: int = 0
    """Number of the driver attempt that requests it."""
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
    """An executor has exceeded a resource limit and is ended for that. ``reason`` is a sentence about the limit."""

    executor_id: int
    reason: str


class CsrToSign(Message, frozen=True):
    """A certificate request (PEM) for executor ``executor_id``; its key never leaves the TaskManager."""

    executor_id: int
    csr_pem: bytes


class SparkRegistration(Message, frozen=True):
    """The driver's SparkContext is up: its address, and the settings that executors must be started with."""

    app_id: str
    driver_url: str
    startup_conf: dict[str, str]
    java_options: tuple[str, ...]
    executor_memory_mb: int
    executor_cores: int
    live_executors: tuple[int, ...] = ()


MAX_EXECUTOR_CORES = 1024

MAX_EXECUTOR_MEMORY_MB = 1 << 24
"""Largest executor that can be requested: 16 TiB."""

_MAX_JAVA_INT = (1 << 31) - 1
"""Spark requests this number when it wants as many executors as possible."""


class ExecutorTarget(Message, frozen=True):
    """How many executors of one Spark resource profile the driver wants.

    A driver is not trusted: values out of these bounds are refused before they reach its JobMaster.
    """

    resource_profile_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    total: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXECUTOR_CORES)]
    memory_mb: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXECUTOR_MEMORY_MB)]


class ExecutorTargets(Message, frozen=True):
    """The driver's current targets. Level-triggered: a higher ``version`` replaces everything before."""

    version: int
    targets: tuple[ExecutorTarget, ...]
