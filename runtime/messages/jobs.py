"""Messages about jobs: their states and their submission."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.core import TraceParent
from sluice.runtime.messages.base import Message
from sluice.runtime.messages.tokens import TokenFiles
from sluice.runtime.restart_config import RestartWish


class JobState(enum.StrEnum):
    """Job states, as in Flink's ``JobStatus``."""

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
        """Whether the state is globally terminal: the job never changes state again."""
        return self in {JobState.FAILED, JobState.CANCELED, JobState.FINISHED}


class JobKind(enum.StrEnum):
    """What a job runs."""

    PIPELINE = "PIPELINE"
    """A submitted program."""
    CONNECT = "CONNECT"
    """A Spark Connect server that only its owner uses."""


class BlobRef(Message, frozen=True):
    """An artifact in the blob server: SHA-256 of its content in lower-case hexadecimal, file name, size in bytes."""

    sha256: str
    name: str
    size: int


class Archive(Message, frozen=True):
    """A packed directory that is unpacked under ``name`` for driver and executors."""

    blob: BlobRef
    name: str


class SecretReference(Message, frozen=True):
    """A reference to a secret that a job needs as a file in memory. It never contains the value.

    Attributes:
        name: name of the secret.
        file: name of the file; empty: the name of the secret.
        version: version number; 0: the newest version when an attempt begins.
        executors: whether executors get the secret, too, and not only the driver.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)]
    file: Annotated[str, msgspec.Meta(max_length=64)] = ""
    version: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    executors: bool = False


class GivenSecret(Message, frozen=True):
    """A secret for a process of a job. Without a ``file`` it only serves to mask the value in logs."""

    name: str
    file: str
    content: Annotated[bytes, msgspec.Meta(max_length=64 << 10)]

    def __repr__(self) -> str:
        return f"<GivenSecret {self.name}>"  # never the value


class Admission(Message, frozen=True):
    """How the gateway admitted a submission, from its assertion; for the job's receipt.

    Attributes:
        method: how the submitter was authenticated.
        credential_kind: kind of the submitter's credential.
        credential: public id of the credential.
        operation: the operation that was granted.
        request_id: id of the request, which the record of the decision in the audit log has as well.
        assertion_id: id of the assertion.
        policy: SHA-256 of the policy file that granted the operation; empty: unknown.
    """

    method: str
    credential_kind: str
    credential: str
    operation: str
    request_id: str = ""
    assertion_id: str = ""
    policy: str = ""


class JobSubmission(Message, frozen=True):
    """A submission to the Dispatcher: one pipeline and how to run it.

    ``spark_conf`` contains only keys that passed :func:`sluice.runtime.spark.jvm.job_conf.check_job_conf`.
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
    """Id of the savepoint from which streaming queries continue."""
    executor_cores: int = 0
    """Cores of each executor; 0: as many as the cluster's default slots have."""
    executor_memory_mb: int = 0
    """Heap of each executor in MiB; 0: as much as the cluster's default slots have."""
    python: str = ""
    """Path of the Python interpreter for driver and executors, in one of ``archives``; empty: the cluster's."""
    token_files: TokenFiles = ()
    """Files with tokens that every process of the job gets."""
    owner_roles: tuple[str, ...] = ()
    """The submitter's roles at submission; the policy grants rights to jobs by these roles."""
    owner_groups: tuple[str, ...] = ()
    """The submitter's groups at submission."""
    trace: TraceParent = ""
    secrets: tuple[SecretReference, ...] = ()
    """The secrets that it needs; their values are never part of a submission."""
    admission: Admission | None = None
    """None: the job was submitted to an earlier version."""
    salt: str = ""
    """Random salt, in hexadecimal, of the commitment to the parameters (:mod:`sluice.runtime.receipts`)."""
    queue: str | msgspec.UnsetType = msgspec.UNSET
    """The scheduling queue whose slots its executors use; unset: no queues were configured."""
    priority: int | msgspec.UnsetType = msgspec.UNSET
    """Priority in its queue; unset: 0."""

    @property
    def blobs(self) -> tuple[BlobRef, ...]:
        """All artifacts of the submission in the blob server."""
        return (self.pipeline, *self.files, *self.py_files, *(each.blob for each in self.archives))
