"""Chooses the queue and priority of a job: only those that its owner may use."""

from __future__ import annotations

import msgspec

from sluice.runtime.jobmanager.errors import SubmissionRejected
from sluice.runtime.messages import JobSubmission
from sluice.runtime.scheduling_config import SchedulingConfig


def assign_queue(submission: JobSubmission, config: SchedulingConfig) -> JobSubmission:
    """The submission with its queue and priority set; both stay empty without queues.

    Raises:
        SubmissionRejected: the owner may not use such a queue, or not with that priority. The message does not tell
            whether others have such a queue.
    """
    wanted, priority = submission.queue or "", submission.priority or 0
    if not config.queues:
        if wanted or priority:
            raise SubmissionRejected("this cluster has no queues", "leave out --queue and --priority")
        return submission
    usable = [each for each in config.queues if each.admits(submission.owner, submission.owner_groups)]
    names = ", ".join(each.name for each in usable)
    if not usable:
        raise SubmissionRejected(
            f"{submission.owner} may use no queue", "ask an operator to be named in one (scheduling.queues)"
        )
    queue = next((each for each in usable if each.name == wanted), None) if wanted else usable[0]
    if queue is None:
        raise SubmissionRejected(f"{submission.owner} may use no queue {wanted[:64]!r}", f"use one of: {names}")
    if not 0 <= priority <= queue.max_priority:
        raise SubmissionRejected(
            f"priority {priority} in queue {queue.name}", f"0 to {queue.max_priority} is allowed (max_priority)"
        )
    return msgspec.structs.replace(submission, queue=queue.name, priority=priority)
