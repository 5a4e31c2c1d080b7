"""The secrets of one attempt: chosen when it begins, given to its driver and executors, and recorded each time.

Whoever is asked checks the grant again, so that what was revoked goes to no further process. Values go to TaskManagers
that keep jobs in sandboxes, and nowhere else; each use is in the audit log before the value leaves this process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from sluice.core import SluiceError
from sluice.runtime.jobmanager.gateways import ResourceManagerInternalGateway
from sluice.runtime.jobmanager.secrets import ChosenSecret, SecretRefused, SecretStore, SecretUseless, Subject, given
from sluice.runtime.messages import GivenSecret, JobSubmission
from sluice.runtime.sandbox import IsolationLevel

_LOG = logging.getLogger(__name__)

Record = Callable[[str, str, Mapping[str, str]], Awaitable[None]]
"""Writes an event to the audit log: its kind, whose job it is about, what there is to know. Raises ``SluiceError``."""

USED, REFUSED = "secret.used", "secret.refused"


class JobSecrets:
    """Gives the secrets of one attempt to its driver and executors, and records each time.

    Args:
        job_id, attempt: which attempt.
        submission: what was submitted, with the secrets that it wants.
        store: of secrets; None: this cluster has none.
        record: writes to the audit log; None: nobody does, and nothing is given.
        resource_manager: knows how TaskManagers keep jobs.
    """

    def __init__(
        self,
        job_id: str,
        attempt: int,
        submission: JobSubmission,
        *,
        store: SecretStore | None,
        record: Record | None,
        resource_manager: ResourceManagerInternalGateway,
    ) -> None:
        self._job_id = job_id
        self._attempt = attempt
        self._submission = submission
        self._subject = Subject.of(submission)
        self._store = store
        self._record = record
        self._resource_manager = resource_manager
        self._chosen: tuple[ChosenSecret, ...] | None = None

    @property
    def wanted(self) -> bool:
        """Whether the job asks for any."""
        return bool(self._submission.secrets)

    async def check(self, taskmanager: str) -> None:
        """Raise before anything is started what would be raised when secrets are given to ``taskmanager``.

        Raises:
            SecretRefused: one is not there, or not granted (any more). No further attempt would get it.
            SecretUseless: it cannot be given there without being seen by others, or not be recorded.
        """
        if self.wanted:
            await self._choose("driver")
            await self._check_place(taskmanager)

    async def for_driver(self, taskmanager: str) -> tuple[GivenSecret, ...]:
        """All secrets of the job; raises as :meth:`check` does."""
        return await self._give("driver", taskmanager, lambda _: True)

    async def for_executor(self, executor_id: int, taskmanager: str) -> tuple[GivenSecret, ...]:
        """All secrets of the job. Those that it does not ask for on executors are masked in their logs, and no more."""
        return await self._give(f"executor {executor_id}", taskmanager, lambda chosen: chosen.executors)

    async def _give(
        self, process: str, taskmanager: str, shown: Callable[[ChosenSecret], bool]
    ) -> tuple[GivenSecret, ...]:
        if not self.wanted:
            return ()
        chosen = await self._choose(process)
        await self._check_place(taskmanager)
        store, record = self._usable()
        result = []
        for each in chosen:
            try:
                value = await store.open(each, self._subject)
            except SecretRefused as error:
                await self._refused(error, process)
                raise
            facts = {"secret": each.name, "version": str(each.version), "shown": "yes" if shown(each) else "no"}
            await record(USED, self._subject.owner, {**self._facts(process), **facts, "taskmanager": taskmanager})
            result.append(given(each, value, shown=shown(each)))
        return tuple(result)

    async def _choose(self, process: str) -> tuple[ChosenSecret, ...]:
        """The same versions for all processes of the attempt, but for a new leader, which chooses anew."""
        if self._chosen is None:
            store, _ = self._usable()
            try:
                self._chosen = await store.choose(self._submission.secrets, self._subject)
            except SecretRefused as error:
                await self._refused(error, process)
                raise
        return self._chosen

    async def _check_place(self, taskmanager: str) -> None:
        for each in await self._resource_manager.taskmanagers():
            if each.id == taskmanager and each.isolation is IsolationLevel.SANDBOX:
                return
        raise SecretUseless(
            f"TaskManager {taskmanager} does not keep jobs in sandboxes: there a secret would be seen by others",
            'set [isolation] level = "sandbox", or submit the job without secrets',
        )

    def _usable(self) -> tuple[SecretStore, Record]:
        if self._store is None or self._record is None:
            raise SecretUseless("this JobManager has no audit log in which uses of secrets could be recorded")
        return self._store, self._record

    async def _refused(self, error: SluiceError, process: str) -> None:
        _LOG.warning("job %s does not get a secret: %s", self._job_id, error)
        if self._record is not None:
            await self._record(REFUSED, self._subject.owner, {**self._facts(process), "reason": error.what})

    def _facts(self, process: str) -> dict[str, str]:
        return {
            "job": self._job_id,
            "name": self._subject.job_name,
            "attempt": str(self._attempt),
            "process": process,
        }
