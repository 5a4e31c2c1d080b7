"""Drivers: launched, given their work, found again by a new leader, ended."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.core import TraceParent
from sluice.runtime.messages.base import Message
from sluice.runtime.messages.executors import _MAX_JAVA_INT
from sluice.runtime.messages.jobs import Archive, BlobRef, JobKind
from sluice.runtime.messages.shuffles import Seal
from sluice.runtime.messages.tokens import TokenFiles

DRIVER_LOGS = ("driver.stdout", "driver.stderr", "driver.jvm", "driver.agent")
"""What a driver may leave, by the names under which users ask for it."""

MAX_CSR_BYTES = 16 << 10
"""Largest certificate request that is looked at."""

MAX_DRIVER_END_CHARACTERS = 500
"""Longest sentence that a TaskManager says about the end of a driver."""


class DriverLaunch(Message, frozen=True):
    """Everything a TaskManager needs to start the driver of one attempt in a slot for drivers.

    The fencing token of its JobMaster is not in it: the TaskManager has it from the :class:`SlotRequest`. What the
    driver is to run it asks its JobMaster for, with its own identity. Sizes are MiB, times seconds.
    """

    job_id: str
    attempt: int
    allocation_id: str
    name: str
    executors: int
    executor_cores: int
    executor_memory_mb: int
    driver_memory_mb: int
    stop_grace: float
    start_timeout: float
    lease: float
    allow_conf: tuple[str, ...] = ()
    trace: TraceParent = ""
    checkpoints: str = ""
    """URL below which the job's streaming queries would keep their checkpoints."""
    may_have_waited: bool = False
    """Whether processes may run it that were started before: it has neither secrets nor a Python of its own."""


class DriverCsr(Message, frozen=True):
    """A certificate request (PEM) for the driver of an attempt; its key never leaves the TaskManager."""

    attempt: int
    csr_pem: Annotated[bytes, msgspec.Meta(max_length=MAX_CSR_BYTES)]


class DriverProcessEnd(Message, frozen=True):
    """The process of a driver has ended, and nothing of it runs any more; ``how`` is for people.

    What the driver has achieved it reports itself.
    """

    attempt: int
    how: Annotated[str, msgspec.Meta(max_length=MAX_DRIVER_END_CHARACTERS)]


class DriverExit(Message, frozen=True):
    """The end of a driver attempt, judged by the exit code *and* by whether Spark ended in order."""

    succeeded: bool
    exit_code: int
    error: str = ""
    traceback: str = ""


MAX_KNOWN_SHUFFLES = 50_000
"""Most shuffles that a driver may tell a new leader of: about a MiB."""

_MAX_NUMBER = (1 << 32) - 1


class KnownShuffle(Message, frozen=True):
    """A shuffle that has a place: Spark's number of it, and its number on the data plane."""

    shuffle_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    number: Annotated[int, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
    partitions: Annotated[int, msgspec.Meta(ge=1, le=_MAX_JAVA_INT)]


class RunningDriver(Message, frozen=True):
    """What a driver says of itself when it registers again: a new leader has it from nobody else (ADR 103).

    Attributes:
        spark_auth_secret: of its SparkContext and executors, in hexadecimal.
        app_id: of the SparkContext that is up; empty without one.
        shuffles: those of that SparkContext that have a place.
        shuffles_asked: how often this driver has asked for the place of a shuffle; each time may have used a number.
        bound: why only the JobMaster that started it can go on with it; empty: any can.
    """

    spark_auth_secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    app_id: Annotated[str, msgspec.Meta(max_length=200)] = ""
    shuffles: Annotated[tuple[KnownShuffle, ...], msgspec.Meta(max_length=MAX_KNOWN_SHUFFLES)] = ()
    shuffles_asked: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)] = 0
    bound: Annotated[str, msgspec.Meta(max_length=200)] = ""

    def __repr__(self) -> str:
        return f"<RunningDriver of {self.app_id!r} with {len(self.shuffles)} shuffles>"  # never the secret


class DriverAssignment(Message, frozen=True):
    """What the JobMaster hands the driver when it registers."""

    pipeline: BlobRef
    files: tuple[BlobRef, ...]
    args: tuple[str, ...]
    spark_conf: dict[str, str]
    spark_auth_secret: str
    blob_host: str
    blob_port: int
    jobmanager: str = ""
    """The name of the blob server's JobManager in its certificate."""
    kind: JobKind = JobKind.PIPELINE
    py_files: tuple[BlobRef, ...] = ()
    archives: tuple[Archive, ...] = ()
    python: str = ""
    """As :attr:`JobSubmission.python`."""
    shuffle: bool = False
    """Whether its shuffles go through the shuffle service."""
    seal: Seal = False
    """Whether it seals what it gives to the service."""
    checkpoints: str = ""
    """URL below which streaming queries keep their checkpoints."""
    token_files: TokenFiles = ()
    secrets: bool = False
    """Whether it is to ask for secrets before it starts anything of the job's."""

    def __repr__(self) -> str:
        return f"<DriverAssignment of a {self.kind} from {self.jobmanager}>"  # never the secret
