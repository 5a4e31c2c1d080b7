"""Receives reports of outgoing connections from TaskManagers, and passes them to the gateway.

Reports are not stored here. A TaskManager gets its answer only after the gateway has answered, so it keeps its rows
until they are in the audit log. The Dispatcher, not the reporter, says who owns a job and what its name is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sluice.core import (
    EgressAnswer,
    EgressDecision,
    EgressQuestion,
    EgressReceipt,
    EgressReport,
    EgressTarget,
    ReportedRow,
    SluiceError,
)
from sluice.pki import SpiffeId
from sluice.runtime.gateways import EGRESS
from sluice.runtime.jobmanager.egress.exchange import Exchange
from sluice.runtime.jobmanager.egress.ledger import EgressLedger, unknown_job
from sluice.runtime.jobmanager.errors import JobNotFound
from sluice.runtime.jobmanager.gateways import DispatcherGateway, EgressConnections, EgressInternalGateway, JobOrigin
from sluice.runtime.rpc import RemotePeer, RpcEndpoint

_LOG = logging.getLogger(__name__)

MAX_QUESTIONS_OF_A_JOB = 50
"""Most questions about single connections of a job that wait for the gateway at the same time; further ones queue."""


@dataclass(slots=True)
class _Turns:
    """The questions of one job; exists while the job has any."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_QUESTIONS_OF_A_JOB))
    wanted: int = 0


class EgressEndpoint(RpcEndpoint):
    """The endpoint for reports of outgoing connections. Its ledger outlives it."""

    def __init__(self, dispatcher: DispatcherGateway, exchange: Exchange, ledger: EgressLedger) -> None:
        super().__init__(EGRESS, EgressInternalGateway)
        self._dispatcher = dispatcher
        self._exchange = exchange
        self._ledger = ledger
        ledger.began_leading()
        self._unavailable = False
        self._turns: dict[str, _Turns] = {}
        self._reporters: dict[str, RemotePeer] = {}

    async def on_stop(self) -> None:
        """Forget what was open: the next leader gets the reports."""
        self._ledger.forget_open()

    async def report_egress(self, report: EgressReport) -> EgressReceipt:
        """Record the rows of a report, and decide about its targets."""
        caller, peer = self.caller.identity, self.caller.peer
        if peer is not None and self._reporters.get(str(caller)) is not peer:
            self._reporters[str(caller)] = peer
            self.watch(peer, self._reporter_gone, str(caller), peer)
        job_ids = {row.job_id for row in report.rows} | {target.job_id for target in report.targets}
        return self.deferred(self._report(report, caller, job_ids, peer))

    async def decide_egress(self, target: EgressTarget) -> EgressDecision:
        """Decide whether a job may connect to ``target``."""
        return self.deferred(self._decide(target))

    async def egress_connections(self, job_id: str) -> EgressConnections:
        """The known connections of a job; those of all jobs when ``job_id`` is empty."""
        if not job_id:
            return EgressConnections(rows=self._ledger.all_rows(), since=self._ledger.since)
        left_out = self._ledger.left_out(job_id)
        return EgressConnections(
            rows=self._ledger.rows_of(job_id),
            left_out=left_out,
            since=self._ledger.since,
            forgotten=self._ledger.may_have_forgotten(job_id),
        )

    def _reporter_gone(self, reporter: str, peer: RemotePeer) -> None:
        if self._reporters.get(reporter) is peer:
            del self._reporters[reporter]
            self._ledger.note_open(reporter, 0)

    async def _report(
        self, report: EgressReport, caller: SpiffeId, job_ids: set[str], peer: RemotePeer | None
    ) -> EgressReceipt:
        origins = [await self._origin(each) for each in sorted(job_ids)]
        self._ledger.note(report.rows, {each.job.id: each.trace for each in origins})
        if peer is None or self._reporters.get(str(caller)) is peer:  # it may have gone meanwhile
            self._ledger.note_open(str(caller), len(report.targets))
        question = EgressQuestion(
            jobs=tuple(each.job for each in origins),
            rows=tuple(ReportedRow(row=row, reporter=_path(caller)) for row in report.rows if not row.open),
            targets=report.targets,
            lost={_path(caller): report.dropped} if report.dropped else {},
        )
        try:
            answer = await self._exchange.ask(question)
        except SluiceError as error:
            if not self._unavailable:
                _LOG.warning("outgoing connections of jobs are not recorded yet, and will be reported again: %s", error)
            self._unavailable = True
            return EgressReceipt(recorded=False, decided=False)
        self._unavailable = False
        self._ledger.note_lost(report.dropped)
        return EgressReceipt(recorded=True, decided=True, refused=_refused(answer))

    async def _decide(self, target: EgressTarget) -> EgressDecision:
        origin = await self._origin(target.job_id)
        try:
            async with self._turn_of(target.job_id):
                answer = await self._exchange.ask(EgressQuestion(jobs=(origin.job,), targets=(target,)))
        except SluiceError as error:
            _LOG.warning("cannot decide about a connection of job %s: %s", target.job_id, error)
            return EgressDecision(decided=False)
        return EgressDecision(decided=True, allowed=answer.allowed == (True,))

    @contextlib.asynccontextmanager
    async def _turn_of(self, job_id: str) -> AsyncIterator[None]:
        """Wait for a turn of the job, so that a job with many questions cannot block those of others."""
        turns = self._turns.setdefault(job_id, _Turns())
        turns.wanted += 1
        try:
            async with turns.free:
                yield
        finally:
            turns.wanted -= 1
            if not turns.wanted:
                del self._turns[job_id]

    async def _origin(self, job_id: str) -> JobOrigin:
        try:
            return await self._dispatcher.job_origin(job_id)
        except JobNotFound:
            return JobOrigin(job=unknown_job(job_id))


def _refused(answer: EgressAnswer) -> tuple[int, ...]:
    return tuple(number for number, allowed in enumerate(answer.allowed) if not allowed)


def _path(identity: SpiffeId) -> str:
    """The path of a SPIFFE ID, such as ``taskmanager/tm-1``; all have the same trust domain."""
    return str(identity).removeprefix(f"spiffe://{identity.trust_domain}/")
