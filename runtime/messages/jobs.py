"""Jobs: their states, and how they are submitted."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.core import TraceParent
from sluice.runtime.messages.base import Message
from sluice.runtime.messages.tokens import TokenFiles
from sluice.runtime.restart_config import RestartWish


class JobState(enum.StrEnum):
    """Job states, as Flink's ``JobStatus``."""

    INITIALIZING = "INITIALIZING"
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    @property
    def terminal(self) -> bool:
        """Globally terminal: the job will never change state again."""
        return self in {JobState.FAILED, JobState.CANCELED, JobState.FINISHED}


class JobKind(enum.StrEnum):
    """What a job runs."""

    PIPELINE = "PIPELINE"
    """A program that was submitted."""
    CONNECT = "CONNECT"
    """A Spark Connect server, for its owner alone."""


class BlobRef(Message, frozen=True):
    """An artifact in the blob server: lower-case SHA-256 of its content, its file name and size in bytes."""

    sha256: str
    name: str
    size: int


class Archive(Message, frozen=True):
    """A packed directory that is unpacked for driver and executors, under ``name``."""

    blob: BlobRef
    name: str


class SecretReference(Message, frozen=True):
    """A secret that a job wants, as a file in memory; never its value.

    Attributes:
        name: of the secret.
        file: name of the file; empty: that of the secret.
        version: its number; 0: the newest when an attempt begins.
        executors: whether executors get it too, besides the driver.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)]
    file: Annotated[str, msgspec.Meta(max_length=64)] = ""
    version: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    executors: bool = False


class GivenSecret(Message, frozen=True):
    """A secret on its way to a process of a job; without a ``file`` only so that its value is masked in logs."""

    name: str
    file: str
    content: Annotated[bytes, msgspec.Meta(max_length=64 << 10)]

    def __repr__(self) -> str:
        return f"<GivenSecret {self.name}>"  # never the value


class Admission(Message, frozen=True):
    """How the gateway admitted a submission, by its assertion; for the job's receipt.

    Attributes:
        method: how the submitter was authenticated.
        credential_kind: what it showed.
        credential: the public id of that.
        operation: what was granted.
        request_id: of the request, as in the audit log: the record of the decision has it.
        assertion_id: of the assertion itself.
        policy: SHA-256 of the policy file that granted it; empty: the gateway did not say.
    """

    method: str
    credential_kind: str
    credential: str
    operation: str
    request_id: str = ""
    assertion_id: str = ""
    policy: str = ""


class JobSubmission(Message, frozen=True):
    """What the Dispatcher accepts: one pipeline and how to run it.

    ``spark_conf`` holds only keys that survived :func:`sluice.runtime.spark.jvm.job_conf.check_job_conf`.
    """

    name: str
    owner: str
    pipeline: BlobRef
    args: tuple[str, ...] = ()
    spark_conf: dict[str, str] = msgspec.field(default_factory=dict)
    executors: int = 2
    files: tuple[BlobRef, ...] = ()
    kind: JobKind = JobKind.PIPELINE
    restart: RestartWish = RestartWish()
    py_files: tuple[BlobRef, ...] = ()
    """Modules and packages for Python's path: ``.py``, ``.zip``, ``.egg``, ``.whl``."""
    archives: tuple[Archive, ...] = ()
    savepoint: str = ""
    """Id of the savepoint from which streaming queries go on."""
    executor_cores: int = 0
    """Of each executor; 0: as many as the cluster's slots have by default."""
    executor_memory_mb: int = 0
    """Heap of each executor; 0: as much as the cluster's slots have by default."""
    python: str = ""
    """Path of the Python that driver and executors use, in one of ``archives``; empty: the cluster's."""
    token_files: TokenFiles = ()
    """Files with tokens that every process of the job finds."""
    owner_roles: tuple[str, ...] = ()
    """The roles of whoever submitted it, when it was submitted: what the policy gives to jobs of these roles."""
    owner_groups: tuple[str, ...] = ()
    """Likewise its groups."""
    trace: TraceParent = ""
    secrets: tuple[SecretReference, ...] = ()
    """Which secrets it wants; their values are never part of a submission."""
    admission: Admission | None = None
    """None: it came in under an earlier version."""
    salt: str = ""
    """Random, in hexadecimal; it hides the parameters in their commitment (:mod:`sluice.runtime.receipts`)."""
    queue: str | msgspec.UnsetType = msgspec.UNSET
    """Whose share of the slots its executors count towards; unset: no queues were configured."""
    priority: int | msgspec.UnsetType = msgspec.UNSET
    """In its queue; unset: 0."""

    @property
    def blobs(self) -> tuple[BlobRef, ...]:
        """Everything of the submission that is in the blob server."""
        return (self.pipeline, *self.files, *self.py_files, *(each.blob for each in self.archives))
