"""Batches questions to the gateway: what arrives while one question is in progress becomes the next question."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from sluice.core import AssertionRefused, EgressAnswer, EgressQuestion, SluiceError

MAX_WAITING = 1000
"""Most questions that wait; further ones are refused, and the caller repeats them later."""
MAX_TOGETHER_ROWS = 2000
"""Most rows in one question."""
MAX_TOGETHER_TARGETS = 10_000
"""Most targets in one question."""

Ask = Callable[[EgressQuestion], Awaitable[EgressAnswer]]
"""Asks the gateway. Its answer means that the rows are in the audit log. Raises :class:`SluiceError` if none comes."""


async def without_gateway(question: EgressQuestion) -> EgressAnswer:
    """The answer in a cluster without a gateway: no policy means that nothing is allowed, and there is no audit log."""
    return EgressAnswer(allowed=(False,) * len(question.targets))


class Exchange:
    """Asks the gateway one question at a time, on behalf of all callers."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: list[tuple[EgressQuestion, asyncio.Future[EgressAnswer]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def ask(self, part: EgressQuestion) -> EgressAnswer:
        """Ask ``part``, and return its answer; raises :class:`SluiceError` when the gateway gives none."""
        if len(self._waiting) >= MAX_WAITING:
            raise AssertionRefused(f"{len(self._waiting)} reports wait for the gateway", "they are sent again")
        answer: asyncio.Future[EgressAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((part, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._run(), name="egress exchange")
        return await answer

    async def close(self) -> None:
        """Stop asking; callers that still wait get an error."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(AssertionRefused("this JobManager is no longer the leader"))
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._ask_for(batch)
        finally:
            self._asking = None

    def _take(self) -> list[tuple[EgressQuestion, asyncio.Future[EgressAnswer]]]:
        """Take the next questions: as many as fit into one, and at least one."""
        rows = targets = 0
        batch: list[tuple[EgressQuestion, asyncio.Future[EgressAnswer]]] = []
        while self._waiting:
            part = self._waiting[0][0]
            rows, targets = rows + len(part.rows), targets + len(part.targets)
            if batch and (rows > MAX_TOGETHER_ROWS or targets > MAX_TOGETHER_TARGETS):
                break
            batch.append(self._waiting.pop(0))
        return batch

    async def _ask_for(self, batch: list[tuple[EgressQuestion, asyncio.Future[EgressAnswer]]]) -> None:
        parts = [part for part, _ in batch]
        try:
            answer = await self._ask(_together(parts))
            if len(answer.allowed) != sum(len(part.targets) for part in parts):
                raise AssertionRefused("the gateway did not answer about every destination")  # noqa: TRY301
        except BaseException as error:
            cause = error if isinstance(error, SluiceError) else AssertionRefused(f"no answer: {type(error).__name__}")
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(AssertionRefused(cause.what, cause.remedy))
            if not isinstance(error, SluiceError | OSError):
                raise
            return
        begin = 0
        for part, waiting in batch:
            end = begin + len(part.targets)
            if not waiting.done():
                waiting.set_result(EgressAnswer(allowed=answer.allowed[begin:end]))
            begin = end


def _together(parts: list[EgressQuestion]) -> EgressQuestion:
    if len(parts) == 1:
        return parts[0]
    lost: Counter[str] = Counter()
    for part in parts:
        lost.update(part.lost)
    return EgressQuestion(
        jobs=tuple({job.id: job for part in parts for job in part.jobs}.values()),
        rows=tuple(row for part in parts for row in part.rows),
        targets=tuple(target for part in parts for target in part.targets),
        lost=dict(lost),
    )
