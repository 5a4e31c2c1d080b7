"""Questions that arrive while one is in flight are sent together; each gets its part of the answer."""

from __future__ import annotations

import asyncio

import pytest

from sluice.core.egress_evidence import EgressAnswer, EgressJob, EgressQuestion, EgressTarget
from sluice.core.errors import AssertionRefused, SluiceError
from sluice.runtime.jobmanager.egress import Exchange, exchange as module, without_gateway


def question(*hosts: str, lost: int = 0) -> EgressQuestion:
    return EgressQuestion(
        jobs=(EgressJob(id="j", name="nightly", owner="ada"),),
        targets=tuple(EgressTarget(job_id="j", host=host, port=443) for host in hosts),
        lost={"taskmanager/tm-1": lost} if lost else {},
    )


class Gateway:
    def __init__(self) -> None:
        self.asked: list[EgressQuestion] = []
        self.came = asyncio.Event()
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self, asked: EgressQuestion) -> EgressAnswer:
        self.asked.append(asked)
        self.came.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return EgressAnswer(allowed=tuple(each.host.startswith("good") for each in asked.targets))


async def test_waiting_questions_are_sent_together_and_each_gets_its_part_of_the_answer() -> None:
    gateway = Gateway()
    exchange = Exchange(gateway.ask)
    first = asyncio.create_task(exchange.ask(question("good1")))
    await gateway.came.wait()
    rest = [
        asyncio.create_task(exchange.ask(question("bad", "good2", lost=2))),
        asyncio.create_task(exchange.ask(question(lost=3))),
        asyncio.create_task(exchange.ask(question("good3"))),
    ]
    await asyncio.sleep(0)
    gateway.go.set()
    assert (await first).allowed == (True,)
    assert [(await each).allowed for each in rest] == [(False, True), (), (True,)]
    assert len(gateway.asked) == 2
    assert gateway.asked[1].lost == {"taskmanager/tm-1": 5}
    assert len(gateway.asked[1].jobs) == 1


async def test_an_error_is_raised_for_all_waiting_questions_and_the_next_one_is_sent_again() -> None:
    gateway = Gateway()
    gateway.go.set()
    gateway.error = AssertionRefused("away")
    exchange = Exchange(gateway.ask)
    answers = await asyncio.gather(*(exchange.ask(question("good")) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, SluiceError) for each in answers)
    gateway.error = None
    assert (await exchange.ask(question("good"))).allowed == (True,)


async def test_an_answer_that_does_not_cover_every_destination_is_refused() -> None:
    async def short(_: EgressQuestion) -> EgressAnswer:
        return EgressAnswer(allowed=())

    with pytest.raises(AssertionRefused, match="every destination"):
        await Exchange(short).ask(question("good"))


async def test_questions_beyond_the_limit_of_waiting_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    gateway = Gateway()
    exchange = Exchange(gateway.ask)
    first = asyncio.create_task(exchange.ask(question("good")))
    await gateway.came.wait()
    waiting = [asyncio.create_task(exchange.ask(question("good"))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(AssertionRefused, match="wait"):
        await exchange.ask(question("good"))
    await exchange.close()
    for each in [first, *waiting]:
        with pytest.raises(AssertionRefused):
            await each


async def test_without_a_gateway_no_destination_is_allowed() -> None:
    assert (await without_gateway(question("good", "bad"))).allowed == (False, False)
