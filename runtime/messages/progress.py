"""Messages about a job's progress: tasks, stages, streaming queries, failures."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.runtime.messages.base import Message


class JobProgress(Message, frozen=True):
    """Counters since the start of the driver attempt; the JobMaster shows them unchanged.

    The counters of finished items exclude failed ones. A retried stage counts again in ``stages_total``.
    """

    spark_jobs_started: int = 0
    spark_jobs_finished: int = 0
    spark_jobs_failed: int = 0
    stages_total: int = 0
    stages_finished: int = 0
    stages_failed: int = 0
    tasks_total: int = 0
    tasks_finished: int = 0
    tasks_failed: int = 0
    tasks_running: int = 0
    executors_added: int = 0
    executors_removed: int = 0
    shuffle_bytes_written: int = 0
    shuffle_bytes_read: int = 0
    first_task_at: float = 0.0


MAX_STAGES = 300
"""Maximum number of stages of a job in a report: the latest ones."""
MAX_PARENTS = 50
MAX_OPERATORS = 20
MAX_QUANTILES = 5
"""Maximum numbers for each stage."""


class StageState(enum.StrEnum):
    """The state of a stage. ``SKIPPED`` means that its output existed already."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class StageReport(Message, frozen=True):
    """One Spark stage, as its driver counts it. Times are epoch milliseconds; 0: not yet.

    ``job`` is Spark's job number, -1 when unknown. ``operators`` are the names of its steps in Spark SQL. ``task_ms``
    has minimum, quartiles and maximum of the durations of its finished tasks; a wide spread shows skew. It is empty
    before the first task has finished.
    """

    id: int
    job: int
    name: str
    state: StageState
    attempts: int
    tasks_total: int
    tasks_running: int
    tasks_finished: int
    tasks_failed: int
    description: str = ""
    parents: tuple[int, ...] = ()
    operators: tuple[str, ...] = ()
    started_at: int = 0
    ended_at: int = 0
    failure: str = ""
    input_bytes: int = 0
    output_bytes: int = 0
    shuffle_read_bytes: int = 0
    shuffle_write_bytes: int = 0
    memory_spilled_bytes: int = 0
    disk_spilled_bytes: int = 0
    run_ms: int = 0
    gc_ms: int = 0
    task_ms: tuple[int, ...] = ()


def _bounded(stage: StageReport) -> StageReport:
    return msgspec.structs.replace(
        stage,
        parents=stage.parents[:MAX_PARENTS],
        operators=stage.operators[:MAX_OPERATORS],
        task_ms=stage.task_ms[:MAX_QUANTILES],
    )


class StageTable(Message, frozen=True):
    """The stages of a driver attempt, without ``left_out`` older ones."""

    stages: tuple[StageReport, ...] = ()
    left_out: int = 0

    def bounded(self) -> StageTable:
        """The table with the latest :data:`MAX_STAGES` stages, each within its limits.

        The driver's listener keeps to them, but a driver is not trusted.
        """
        latest = tuple(_bounded(each) for each in self.stages[-MAX_STAGES:])
        return StageTable(stages=latest, left_out=self.left_out + len(self.stages) - len(latest))


MAX_STREAMING_QUERIES = 64
"""Maximum number of streaming queries of one driver in a report."""


class StreamingQuery(Message, frozen=True):
    """One Structured Streaming query. ``batch`` is its last committed batch, -1 before the first.

    ``state`` is RUNNING, ENDED or FAILED. ``location`` is the URL of its checkpoint, ``rows`` the number of rows that
    this driver has read.
    """

    id: str
    run_id: str
    name: str
    location: str
    state: str
    batch: int = -1
    rows: int = 0
    error: str = ""


class StreamingState(Message, frozen=True):
    """All streaming queries of a driver. Level-triggered: the latest message replaces earlier ones."""

    queries: Annotated[tuple[StreamingQuery, ...], msgspec.Meta(max_length=MAX_STREAMING_QUERIES)] = ()


class TaskFailure(Message, frozen=True):
    """A task failed with an error of its own; Spark may run it again."""

    stage: int
    partition: int
    attempt: int
    executor_id: int
    error: str
    traceback: str = ""
