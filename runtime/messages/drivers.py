"""Messages about drivers: their launch, assignment, takeover by a new leader, and end."""

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
"""The logs that a driver may leave, by the names that users ask for."""

MAX_CSR_BYTES = 16 << 10
"""Largest certificate request that is accepted."""

MAX_DRIVER_END_CHARACTERS = 500
"""Longest description of a driver's end by its TaskManager."""


class DriverLaunch(Message, frozen=True):
    """Everything a TaskManager needs to start the driver of one attempt in a slot for drivers.

    It does not contain the fencing token of the JobMaster, which the TaskManager has from the :class:`SlotRequest`. The
    driver asks its JobMaster for its work, with its own identity. Sizes are in MiB, times in seconds.
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
    """URL below which streaming queries of the job keep their checkpoints, if there are any."""
    may_have_waited: bool = False
    """Whether warm processes may run it: those without secrets and without a Python of the job's own."""


class DriverCsr(Message, frozen=True):
    """A certificate request (PEM) for the driver of an attempt; its key never leaves the TaskManager."""

    attempt: int
    csr_pem: Annotated[bytes, msgspec.Meta(max_length=MAX_CSR_BYTES)]


class DriverProcessEnd(Message, frozen=True):
    """The process of a driver has ended, with all of its children; ``how`` is for people.

    The driver reports its own result separately.
    """

    attempt: int
    how: Annotated[str, msgspec.Meta(max_length=MAX_DRIVER_END_CHARACTERS)]


class DriverExit(Message, frozen=True):
    """The end of a driver attempt, judged by the exit code *and* by whether Spark stopped cleanly."""

    succeeded: bool
    exit_code: int
    error: str = ""
    traceback: str = ""


MAX_KNOWN_SHUFFLES = 50_000
"""Maximum number of shuffles that a driver may report to a new leader: about a MiB."""

_MAX_NUMBER = (1 << 32) - 1


class KnownShuffle(Message, frozen=True):
    """A shuffle that has an allocation: Spark's number for it, and its number on the data plane."""

    shuffle_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    number: Annotated[int, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
    partitions: Annotated[int, msgspec.Meta(ge=1, le=_MAX_JAVA_INT)]


class RunningDriver(Message, frozen=True):
    """A driver's state when it registers again; a new leader has no other source for it (ADR 103).

    Attributes:
        spark_auth_secret: secret of its SparkContext and executors, in hexadecimal.
        app_id: application ID of the running SparkContext; empty without one.
        shuffles: shuffles of that SparkContext that have an allocation.
        shuffles_asked: how often this driver has asked for a shuffle's allocation; each time may have used a number.
        bound: why only the JobMaster that started it can continue with it; empty: any JobMaster can.
    """

    spark_auth_secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    app_id: Annotated[str, msgspec.Meta(max_length=200)] = ""
    shuffles: Annotated[tuple[KnownShuffle, ...], msgspec.Meta(max_length=MAX_KNOWN_SHUFFLES)] = ()
    shuffles_asked: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)] = 0
    bound: Annotated[str, msgspec.Meta(max_length=200)] = ""

    def __repr__(self) -> str:
        return f"<RunningDriver of {self.app_id!r} with {len(self.shuffles)} shuffles>"  # never the secret


class DriverAssignment(Message, frozen=True):
    """The work that the JobMaster gives to a driver when it registers."""

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
    """Whether it encrypts (seals) the data that it gives to the service."""
    checkpoints: str = ""
    """URL below which streaming queries keep their checkpoints."""
    token_files: TokenFiles = ()
    secrets: bool = False
    """Whether it must ask for secrets before it starts any process of the job."""

    def __repr__(self) -> str:
        return f"<DriverAssignment of a {self.kind} from {self.jobmanager}>"  # never the secret
