"""Egress questions of many jobs at one JobManager."""

from __future__ import annotations

import asyncio
from typing import cast

from sluice.core import EgressAnswer, EgressJob, EgressQuestion, EgressTarget
from sluice.runtime.jobmanager.egress import EgressEndpoint, EgressLedger, Exchange
from sluice.runtime.jobmanager.egress.endpoint import MAX_QUESTIONS_OF_A_JOB
from sluice.runtime.jobmanager.egress.exchange import MAX_WAITING
from sluice.runtime.jobmanager.gateways import DispatcherGateway, JobOrigin

HOSTILE, NEIGHBOUR = "a" * 32, "b" * 32


class Dispatcher:
    """A fake Dispatcher that knows every job."""

    async def job_origin(self, job_id: str) -> JobOrigin:
        return JobOrigin(job=EgressJob(id=job_id, name="job", owner="ada"))


async def test_a_job_with_many_egress_questions_does_not_delay_those_of_other_jobs() -> None:
    go_on, asked = asyncio.Event(), list[EgressQuestion]()

    async def gateway(question: EgressQuestion) -> EgressAnswer:
        asked.append(question)
        await go_on.wait()
        return EgressAnswer(allowed=(True,) * len(question.targets))

    exchange = Exchange(gateway)
    endpoint = EgressEndpoint(cast("DispatcherGateway", Dispatcher()), exchange, EgressLedger())

    def ask(job_id: str) -> asyncio.Task[object]:
        return asyncio.create_task(endpoint._decide(EgressTarget(job_id=job_id, host="api.example.com", port=443)))

    flood = [ask(HOSTILE) for _ in range(MAX_WAITING + 100)]
    while not asked:  # noqa: ASYNC110 - what is waited for are other tasks of this loop
        await asyncio.sleep(0)
    neighbour = ask(NEIGHBOUR)
    await asyncio.sleep(0)
    go_on.set()
    decision = await neighbour
    assert decision == await flood[0]
    assert sum(target.job_id == HOSTILE for target in asked[0].targets) <= MAX_QUESTIONS_OF_A_JOB
    assert {each.allowed for each in await asyncio.gather(*flood)} == {True}  # type: ignore[attr-defined]
    assert endpoint._turns == {}
    await exchange.close()
