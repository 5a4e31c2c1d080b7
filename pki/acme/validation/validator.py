"""Validates challenges in the background: a bounded number at a time, each with a few attempts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import Counter

from sluice.core import REGISTRY, PkiError, SluiceError, end_tasks
from sluice.pki.acme.identifiers import Identifier
from sluice.pki.acme.names import NamePolicy
from sluice.pki.acme.objects import ChallengeType, ValidationTask
from sluice.pki.acme.problems import AcmeProblem, ProblemType
from sluice.pki.acme.validation.dns01 import check_dns
from sluice.pki.acme.validation.http01 import check_http
from sluice.pki.acme.validation.reach import Reach, Resolver
from sluice.pki.acme.validation.tls_alpn01 import check_tls_alpn

_LOG = logging.getLogger(__name__)

MAX_CONCURRENT = 16
"""Validations at a time."""
MAX_WAITING = 1000
"""Most waiting validations; beyond it, clients are told to retry."""
PAUSES_SECONDS = (0.0, 1.0, 3.0)
"""Seconds before each attempt: a client may be early, or DNS late (RFC 8555, 8.2)."""
KEEP_PAUSE_SECONDS = 5.0
"""Seconds before the result is written again after a disk error."""
KEEP_ATTEMPTS = 12

VALIDATIONS = Counter(
    "sluice_acme_validations_total",
    "Challenges that the ACME server has validated, by their type and how that ended.",
    ["type", "result"],
    registry=REGISTRY,
)

Check = Callable[[ValidationTask], Awaitable[None]]
"""Raises :class:`AcmeProblem` when the challenge fails."""


def challenge_check(reach: Reach, resolver: Resolver, policy: Callable[[], NamePolicy]) -> Check:
    """Make the function that checks challenges over the network."""

    async def check(task: ValidationTask) -> None:
        def refusal(host: Identifier) -> str:
            return policy().refusal(host, task.account_names)

        match task.type:
            case ChallengeType.HTTP:
                await check_http(task.identifier, task.token, task.key_authorization, reach, resolver, refusal)
            case ChallengeType.TLS_ALPN:
                await check_tls_alpn(task.identifier, task.key_authorization, reach, resolver)
            case ChallengeType.DNS:
                await check_dns(task.identifier, task.key_authorization, resolver)

    return check


class Validator:
    """Runs checks; ``decided`` stores each result and raises :class:`SluiceError` when it cannot."""

    def __init__(
        self,
        check: Check,
        decided: Callable[[ValidationTask, AcmeProblem | None], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._check = check
        self._decided = decided
        self._sleep = sleep
        self._places = asyncio.Semaphore(MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()

    def require_room(self) -> None:
        """Raise :class:`AcmeProblem` while too many validations wait."""
        if len(self._tasks) >= MAX_WAITING:
            raise AcmeProblem(ProblemType.RATE_LIMITED, "too many challenges are being validated", retry_after=30.0)

    def start(self, task: ValidationTask) -> None:
        """Validate ``task`` in the background."""
        running = asyncio.create_task(self._run(task), name=f"validate-{task.type}")
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel running validations: they begin again with the next start."""
        await end_tasks(*self._tasks)

    async def _run(self, task: ValidationTask) -> None:
        async with self._places:
            problem = await self._attempts(task)
        result = "valid" if problem is None else str(problem.kind)
        VALIDATIONS.labels(task.type, result).inc()
        _LOG.info(
            "ACME account %s: %s of %s: %s",
            task.account,
            task.type,
            task.identifier.value,
            result if problem is None else problem.what,
        )
        for attempt in range(KEEP_ATTEMPTS):
            try:
                await self._decided(task, problem)
            except SluiceError as error:
                _LOG.error("cannot store the result of a validation: %s", error)
                if attempt + 1 < KEEP_ATTEMPTS:
                    await self._sleep(KEEP_PAUSE_SECONDS)
            else:
                return

    async def _attempts(self, task: ValidationTask) -> AcmeProblem | None:
        problem: AcmeProblem | None = None
        for pause in PAUSES_SECONDS:
            if pause:
                await self._sleep(pause)
            try:
                await self._check(task)
            except AcmeProblem as error:
                problem = error
                continue
            except PkiError as error:
                return AcmeProblem(ProblemType.CONNECTION, str(error))
            except Exception:  # noqa: BLE001  a hostile host may provoke any
                # What a hostile server provoked must not leave a challenge in processing for ever.
                _LOG.exception("the validation of %s failed unexpectedly", task.identifier)
                return AcmeProblem(ProblemType.SERVER_INTERNAL, "the validation failed: see the log of the CA")
            return None
        return problem
