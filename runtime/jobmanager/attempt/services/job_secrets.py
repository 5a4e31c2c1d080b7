"""The secrets of one attempt: chosen when it begins, and given to its driver and executors; each use is recorded.

The grant is checked again for each process, so a revoked secret goes to no further process. Values go only to
TaskManagers that run jobs in sandboxes. Each use is in the audit log before the value leaves this process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from sluice.core import SluiceError
from sluice.runtime.jobmanager.gateways import ResourceManagerInternalGateway
from sluice.runtime.jobmanager.secrets import (
    ChosenSecret,
    SecretRefused,
    SecretStore,
    SecretUseless,
    Subject,
    given_secret,
)
from sluice.runtime.messages import GivenSecret, JobSubmission
from sluice.runtime.sandbox import IsolationLevel

_LOG = logging.getLogger(__name__)

Record = Callable[[str, str, Mapping[str, str]], Awaitable[None]]
"""Writes an event to the audit log: its kind, the owner of the job, and its details. Raises ``SluiceError``."""

USED, REFUSED = "secret.used", "secret.refused"


class JobSecrets:
    """Gives the secrets of one attempt to its driver and executors, and records each use.

    Args:
        job_id, attempt: the attempt.
        submission: the submission, with the secrets that the job wants.
        store: the store of secrets; None when this cluster has none.
        record: writes to the audit log; None when there is none: then no secret is given.
        resource_manager: knows the isolation level of each TaskManager.
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
        """Whether the job wants any secrets."""
        return bool(self._submission.secrets)

    async def check(self, taskmanager: str) -> None:
        """Check, before anything is started, that the secrets can be given to ``taskmanager``.

        Raises:
            SecretRefused: a secret does not exist, or is not granted (any more). No further attempt would get it.
            SecretUseless: others on ``taskmanager`` could see the secrets, or their use cannot be recorded.
        """
        if self.wanted:
            await self._choose("driver")
            await self._check_place(taskmanager)

    async def for_driver(self, taskmanager: str) -> tuple[GivenSecret, ...]:
        """The secrets for the driver; raises the errors of :meth:`check`."""
        return await self._give("driver", taskmanager, lambda _: True)

    async def for_executor(self, executor_id: int, taskmanager: str) -> tuple[GivenSecret, ...]:
        """The secrets for an executor. Those not requested for executors are given only to mask them in logs."""
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
            result.append(given_secret(each, value, shown=shown(each)))
        return tuple(result)

    async def _choose(self, process: str) -> tuple[ChosenSecret, ...]:
        """Choose the versions once for all processes of the attempt; a new leader chooses again."""
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
            f"TaskManager {taskmanager} does not run jobs in sandboxes, so others could see the secrets",
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
