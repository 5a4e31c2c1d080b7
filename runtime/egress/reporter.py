"""Reports the journal to the JobManager, and ends connections that the egress policy no longer allows.

If no answer about the policy arrives for some seconds, it fails closed: it ends every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from sluice.core import EgressDecision, EgressReceipt, EgressReport, EgressRow, EgressTarget, SluiceError, end_tasks
from sluice.runtime.egress.journal import EgressJournal
from sluice.runtime.gateways import EgressGateway

_LOG = logging.getLogger(__name__)

REPORT_SECONDS = 0.25
"""Pause between two reports while connections are open or rows wait. A policy change takes effect within a second."""
GRACE_SECONDS = 10.0
"""Default for how long open connections may stay without an answer about the policy."""
FLUSH_SECONDS = 3.0
"""How long a stopping process waits for its last rows to be recorded."""
MAX_FLUSHES = 25
"""Maximum number of reports in that time; enough for a full journal."""
NOT_ALLOWED = "the policy does not allow it any more"
NO_ANSWER = "no answer about the policy for {:g} s"


class EgressReporter:
    """Reports one journal while :meth:`run` runs.

    Args:
        journal: the journal of this process.
        find: returns the leading JobManager, or None if none is known now.
        enforce: whether connections are ended when the policy does not allow them.
        grace: seconds that open connections may stay without an answer about the policy.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        journal: EgressJournal,
        find: Callable[[], EgressGateway | None],
        *,
        enforce: bool,
        grace: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._find = find
        self._enforce = enforce
        self._grace = grace
        self._clock = clock
        self._decided_at = clock()
        self._away = False

    async def run(self) -> None:
        """Report until cancelled."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        self._journal.wake = wake
        try:
            while True:
                if self._journal.idle:
                    news.clear()
                    if self._journal.idle:
                        await news.wait()
                    self._decided_at = self._clock()  # connections that are open now were decided on just now
                await self.step()
                await asyncio.sleep(REPORT_SECONDS)
        finally:
            self._journal.wake = lambda: None

    async def decide(self, target: EgressTarget) -> EgressDecision:
        """Whether the policy allows ``target`` now; undecided if the JobManager does not answer."""
        gateway = self._find()
        if gateway is None:
            return EgressDecision(decided=False)
        try:
            return await gateway.decide_egress(target)
        except (SluiceError, OSError) as error:
            _LOG.warning("the policy decision for a connection of job %s failed: %s", target.job_id, error)
            return EgressDecision(decided=False)

    async def flush(self, find: Callable[[], Awaitable[EgressGateway]]) -> tuple[EgressRow, ...]:
        """Report everything, once all sandboxes have ended; return the rows left after :data:`FLUSH_SECONDS`.


        Args:
            find: connects to the leading JobManager; raises :class:`SluiceError` or OSError.
        """
        if self._journal.idle:
            return ()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                gateway = await find()
                self._find = lambda: gateway
                for _ in range(MAX_FLUSHES):
                    if self._journal.idle or not await self.step(last=True):
                        break
        except (SluiceError, OSError, TimeoutError) as error:
            _LOG.warning("cannot report the last outbound connections of jobs: %s", error or type(error).__name__)
        return self._journal.left()

    async def step(self, *, last: bool = False) -> bool:
        """Send one report and apply the answer; return whether the report was recorded."""
        report = self._journal.report(last=last)
        receipt = await self._tell(report)
        if receipt is not None:
            if receipt.recorded:
                self._journal.settle(report)
            if receipt.decided:
                self._decided_at = self._clock()
                self._end_refused(report, receipt)
        if self._enforce and self._clock() - self._decided_at >= self._grace:
            reason = NO_ANSWER.format(self._grace)
            ended = self._journal.end_all(reason)
            if ended:
                _LOG.warning("ended %d outbound connections of jobs: %s", ended, reason)
        return receipt is not None and receipt.recorded

    def _end_refused(self, report: EgressReport, receipt: EgressReceipt) -> None:
        refused = frozenset(report.targets[each] for each in receipt.refused if each < len(report.targets))
        if refused and self._enforce:
            ended = self._journal.end_targets(refused, NOT_ALLOWED)
            _LOG.info("ended %d outbound connections of jobs: %s", ended, NOT_ALLOWED)

    async def _tell(self, report: EgressReport) -> EgressReceipt | None:
        """Send ``report``; return the answer, or None if there is none."""
        gateway = self._find()
        if gateway is None:
            return None
        try:
            receipt = await gateway.report_egress(report)
        except (SluiceError, OSError) as error:
            if not self._away:
                _LOG.warning("cannot report the outbound connections of jobs: %s", error)
            self._away = True
            return None
        self._away = False
        return receipt


@contextlib.asynccontextmanager
async def reporting_egress(reporter: EgressReporter) -> AsyncIterator[None]:
    """Run ``reporter`` within the context. :meth:`EgressReporter.flush` sends what is left afterwards."""
    running = asyncio.create_task(reporter.run(), name="egress report")
    try:
        yield
    finally:
        await end_tasks(running)
