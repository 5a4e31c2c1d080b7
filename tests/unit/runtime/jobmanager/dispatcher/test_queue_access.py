"""Who may submit to which queue, and with which priority."""

from __future__ import annotations

import msgspec
import pytest

from sluice.runtime.jobmanager.dispatcher.queue_access import assign_queue
from sluice.runtime.jobmanager.errors import SubmissionRejected
from sluice.runtime.messages import BlobRef, JobSubmission
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig

QUEUES = SchedulingConfig(
    queues=(
        QueueConfig(name="nobodys"),
        QueueConfig(name="etl", users=("ann",), groups=("data",), max_priority=3),
        QueueConfig(name="all", users=("*",)),
    )
)


def submitted(owner: str = "eve", queue: str = "", priority: int = 0, groups: tuple[str, ...] = ()) -> JobSubmission:
    return JobSubmission(
        name="job",
        owner=owner,
        owner_groups=groups,
        pipeline=BlobRef(name="job.py", sha256="0" * 64, size=1),
        queue=queue or msgspec.UNSET,
        priority=priority or msgspec.UNSET,
    )


def test_without_queues_a_submission_is_unchanged_and_must_not_name_queue_or_priority() -> None:
    submission = submitted()
    assert assign_queue(submission, SchedulingConfig()) is submission
    for wish in (submitted(queue="all"), submitted(priority=1)):
        with pytest.raises(SubmissionRejected, match="has no queues"):
            assign_queue(wish, SchedulingConfig())


@pytest.mark.parametrize(
    ("submission", "queue", "priority"),
    [
        (submitted("ann"), "etl", 0),
        (submitted("ann", "all"), "all", 0),
        (submitted("ann", "etl", 3), "etl", 3),
        (submitted("bob", groups=("data",)), "etl", 0),
        (submitted("eve"), "all", 0),
    ],
)
def test_a_job_is_in_the_queue_that_it_names_or_in_the_first_one_of_its_owner(
    submission: JobSubmission, queue: str, priority: int
) -> None:
    assigned = assign_queue(submission, QUEUES)
    assert (assigned.queue, assigned.priority) == (queue, priority)


@pytest.mark.parametrize(
    "submission",
    [
        submitted("eve", "etl"),
        submitted("eve", "nobodys"),
        submitted("eve", "no-such-queue"),
        submitted("ann", "nobodys"),
        submitted("*", "etl"),
        submitted("data", "etl"),
        submitted("ann", "etl", 4),
        submitted("ann", "etl", -1),
        submitted("ann", "all", 1),
        submitted("eve", priority=1),
    ],
)
def test_foreign_queues_and_higher_priorities_are_refused(submission: JobSubmission) -> None:
    with pytest.raises(SubmissionRejected):
        assign_queue(submission, QUEUES)


def test_a_queue_of_others_is_refused_with_the_same_error_as_an_unknown_queue() -> None:
    reasons = []
    for queue in ("etl", "xyz"):
        with pytest.raises(SubmissionRejected) as refused:
            assign_queue(submitted("eve", queue), QUEUES)
        reasons.append(str(refused.value).replace(queue, "QUEUE"))
    assert reasons[0] == reasons[1]


def test_a_user_who_may_use_no_queue_cannot_submit_jobs() -> None:
    with pytest.raises(SubmissionRejected, match="eve may use no queue"):
        assign_queue(submitted("eve"), SchedulingConfig(queues=(QueueConfig(name="mine", users=("ann",)),)))


@pytest.mark.parametrize(
    "data",
    [
        {"queues": [{"name": "Big"}]},
        {"queues": [{"name": "a"}, {"name": "a"}]},
        {"queues": [{"name": "a", "weight": 0}]},
        {"queues": [{"name": "a", "weight": float("nan")}]},
        {"queues": [{"name": "a", "guaranteed": 0.7}, {"name": "b", "guaranteed": 0.4}]},
        {"queues": [{"name": "a", "guaranteed": 0.5, "maximum": 0.4}]},
        {"queues": [{"name": "a", "max_priority": 101}]},
        {"queues": [{"name": f"q{i}"} for i in range(65)]},
        {"max_slots_per_group": {"interns": 2}},
        {"queues": [{"name": "a", "user": ["ann"]}]},
    ],
)
def test_invalid_queue_settings_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(data, SchedulingConfig)
