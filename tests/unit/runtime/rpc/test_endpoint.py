"""RPC endpoints: order, serial execution, timers, background work, cancellation, start and stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import pytest

from sluice.core.errors import SluiceError
from sluice.pki.spiffe_id import Role
from sluice.runtime.rpc import (
    Caller,
    CallNotPermitted,
    EndpointNotFound,
    EndpointStopped,
    FencedRpcEndpoint,
    FencingTokenMismatch,
    MailboxFull,
    MethodNotFound,
    PermanentlyFencedRpcEndpoint,
    RemoteFailure,
    RpcEndpoint,
    RpcError,
    RpcService,
    RpcTimeout,
    remotable,
    rpc,
)
from tests.waiting import until

JOBMANAGERS = frozenset({Role.JOBMANAGER})
Failures = list[tuple[RpcEndpoint, BaseException]]


@remotable
class Busy(SluiceError):
    pass


class ActorGateway(Protocol):
    @rpc(allow=JOBMANAGERS)
    async def put(self, number: int) -> int: ...

    @rpc(allow=JOBMANAGERS, oneway=True)
    async def drop(self, number: int) -> None: ...

    @rpc(allow=JOBMANAGERS)
    async def wait(self, number: int) -> None: ...

    @rpc(allow=JOBMANAGERS, timeout=0.05)
    async def wait_briefly(self) -> None: ...

    @rpc(allow=JOBMANAGERS)
    async def later(self, number: int) -> int: ...

    @rpc(allow=JOBMANAGERS, timeout=0.05)
    async def later_briefly(self) -> int: ...

    @rpc(allow=JOBMANAGERS)
    async def fail(self, typed: bool) -> None: ...

    @rpc(allow=JOBMANAGERS)
    async def cancelled_inside(self) -> None: ...

    @rpc(allow=JOBMANAGERS)
    async def ask_myself(self) -> int: ...

    @rpc(allow=JOBMANAGERS)
    async def ask_myself_deferred(self) -> int: ...

    @rpc(allow=JOBMANAGERS)
    async def stop_myself(self) -> None: ...

    @rpc(allow={Role.TASKMANAGER})
    async def for_others(self) -> None: ...

    @rpc(allow=JOBMANAGERS, unfenced=True)
    async def open_to_all(self) -> str: ...


class Actor(RpcEndpoint):
    """An endpoint that records its calls in a diary and fails if two of them run at once."""

    def __init__(self, name: str = "actor", *, mailbox_capacity: int = 100) -> None:
        super().__init__(name, ActorGateway, mailbox_capacity=mailbox_capacity)
        self.diary: list[object] = []
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.deferred_cancelled = asyncio.Event()
        self._inside = 0

    async def on_start(self) -> None:
        self.diary.append("start")

    async def on_stop(self) -> None:
        self.diary.append("stop")

    async def put(self, number: int) -> int:
        self._inside += 1
        assert self._inside == 1, "two handlers at once"
        await asyncio.sleep(0)
        self.diary.append(number)
        self._inside -= 1
        return number

    async def drop(self, number: int) -> None:
        await self.put(number)

    async def wait(self, number: int) -> None:
        self.waiting.set()
        await self.gate.wait()
        self.diary.append(number)

    async def wait_briefly(self) -> None:
        await self.wait(-1)

    async def later(self, number: int) -> int:
        async def work() -> int:
            self.waiting.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.deferred_cancelled.set()
                raise
            return number

        return self.deferred(work())

    async def later_briefly(self) -> int:
        return await self.later(1)

    async def fail(self, typed: bool) -> None:
        raise Busy("slot 1") if typed else ValueError("untyped")

    async def cancelled_inside(self) -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    async def ask_myself(self) -> int:
        return await self.service.local(ActorGateway, self.name).put(1)

    async def ask_myself_deferred(self) -> int:
        return self.deferred(self.service.local(ActorGateway, self.name).put(1))

    async def stop_myself(self) -> None:
        await self.service.stop(self)

    async def for_others(self) -> None:
        raise AssertionError("must not be reached")

    async def open_to_all(self) -> str:
        return str(self.caller.identity)


async def started(service: RpcService, actor: Actor | None = None) -> tuple[Actor, ActorGateway]:
    made = actor or Actor()
    await service.start(made)
    return made, service.local(ActorGateway, made.name)


# --- order and single-threadedness -----------------------------------------------------------------


async def test_calls_posts_and_tells_run_in_order_one_at_a_time(service: RpcService) -> None:
    actor, gateway = await started(service)

    async def note(what: str) -> None:
        await asyncio.sleep(0)
        actor.diary.append(what)

    blocked = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    asks = [asyncio.create_task(gateway.put(1))]
    await asyncio.sleep(0)
    actor.post(actor.diary.append, "posted")
    actor.post(note, "posted coroutine")
    await gateway.drop(2)
    asks.append(asyncio.create_task(gateway.put(3)))
    await asyncio.sleep(0)
    actor.gate.set()
    await asyncio.gather(blocked, *asks)
    assert actor.diary == ["start", 0, 1, "posted", "posted coroutine", 2, 3]


async def test_many_concurrent_asks_are_served_in_order(service: RpcService) -> None:
    actor, gateway = await started(service, Actor(mailbox_capacity=1000))
    assert await asyncio.gather(*(gateway.put(number) for number in range(1000))) == list(range(1000))
    assert actor.diary == ["start", *range(1000)]


async def test_a_busy_endpoint_yields_to_other_tasks(service: RpcService) -> None:
    actor, _ = await started(service, Actor(mailbox_capacity=10_000))
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(actor.diary))
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for number in range(1000):
        actor.post(actor.diary.append, number)
    await until(lambda: len(actor.diary) == 1001)
    task.cancel()
    assert len(turns) > 5


# --- refusals ----------------------------------------------------------------------------------------


async def test_a_full_mailbox_refuses_asks_and_posts_and_drops_tells(
    service: RpcService, caplog: pytest.LogCaptureFixture
) -> None:
    actor, gateway = await started(service, Actor(mailbox_capacity=2))
    blocked = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    accepted = [asyncio.create_task(gateway.put(number)) for number in (1, 2)]
    await asyncio.sleep(0)
    assert actor.stats.depth == 2
    with pytest.raises(MailboxFull, match="actor has 2 messages waiting"):
        await gateway.put(3)
    with pytest.raises(MailboxFull):
        actor.post(actor.diary.append, 4)
    with caplog.at_level(logging.WARNING):
        await gateway.drop(5)
    assert "dead letter: drop of actor" in caplog.text
    assert service.dead_letters.counts == {("actor", "MailboxFull"): 1}
    actor.gate.set()
    assert await asyncio.gather(*accepted) == [1, 2]
    assert await gateway.put(6) == 6
    await blocked
    assert actor.diary == ["start", 0, 1, 2, 6]


async def test_local_calls_are_checked_like_remote_ones(service: RpcService) -> None:
    class More(ActorGateway, Protocol):
        @rpc(allow=JOBMANAGERS)
        async def on_stop(self) -> None: ...

    _, gateway = await started(service)
    with pytest.raises(CallNotPermitted, match="jobmanager/jm may not call for_others"):
        await gateway.for_others()
    with pytest.raises(MethodNotFound):
        await service.local(More, "actor").on_stop()
    with pytest.raises(EndpointNotFound):
        await service.local(ActorGateway, "nobody").put(1)
    with pytest.raises(TypeError):
        await gateway.put()  # type: ignore[call-arg]  # wrong on purpose


async def test_errors_of_local_calls_arrive_like_those_of_remote_calls(
    service: RpcService, failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    _, gateway = await started(service)
    with pytest.raises(Busy, match="slot 1") as typed:
        await gateway.fail(True)
    assert "in fail" in typed.value.remote_traceback  # type: ignore[attr-defined]  # set on whatever arrives
    with pytest.raises(RemoteFailure, match="ValueError: untyped"):
        await gateway.fail(False)
    with pytest.raises(RemoteFailure, match="CancelledError"):
        await gateway.cancelled_inside()
    assert await gateway.put(1) == 1
    assert failures == [], "they belong to the caller"
    assert "spiffe://sluice.local/jobmanager/jm" in caplog.text, "logged with who called"


async def test_fencing_is_checked_when_a_queued_call_is_run(service: RpcService) -> None:
    class Leader(Actor, FencedRpcEndpoint):
        pass

    leader = Leader()
    await service.start(leader)
    leader.fencing_token = b"one"
    gateway = service.local(ActorGateway, "actor", token=b"one")
    blocked = asyncio.create_task(gateway.wait(0))
    await leader.waiting.wait()
    queued = asyncio.create_task(gateway.put(1))
    await asyncio.sleep(0)
    leader.fencing_token = None
    leader.gate.set()
    await blocked
    with pytest.raises(FencingTokenMismatch):
        await queued
    assert await service.local(ActorGateway, "actor").open_to_all() == str(service.spiffe_id)
    assert leader.diary == ["start", 0]


async def test_a_permanent_token_never_changes(service: RpcService) -> None:
    class Session(PermanentlyFencedRpcEndpoint):
        put = Actor.put
        drop = Actor.drop
        wait = Actor.wait
        wait_briefly = Actor.wait_briefly
        later = Actor.later
        later_briefly = Actor.later_briefly
        fail = Actor.fail
        cancelled_inside = Actor.cancelled_inside
        ask_myself = Actor.ask_myself
        ask_myself_deferred = Actor.ask_myself_deferred
        stop_myself = Actor.stop_myself
        for_others = Actor.for_others

        async def open_to_all(self) -> str:
            return "open"

    session = Session("session", ActorGateway, b"token")
    await service.start(session)
    with pytest.raises(RpcError, match="permanently fenced"):
        session.fencing_token = b"other"
    with pytest.raises(FencingTokenMismatch):
        await service.local(ActorGateway, "session", token=b"other").fail(True)
    with pytest.raises(Busy):
        await service.local(ActorGateway, "session", token=b"token").fail(True)
    assert await service.local(ActorGateway, "session").open_to_all() == "open"


# --- the caller -----------------------------------------------------------------------------------------


async def test_the_caller_is_known_inside_a_handler_only(service: RpcService) -> None:
    actor, gateway = await started(service)
    assert await gateway.open_to_all() == str(service.spiffe_id)
    with pytest.raises(RpcError, match="not serving a call"):
        _ = actor.caller
    blocked = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    with pytest.raises(RpcError, match="not serving a call"):
        _ = actor.caller  # a handler is at work, but this is not it
    actor.gate.set()
    await blocked


def test_a_local_caller_has_no_peer(service: RpcService) -> None:
    assert Caller(service.spiffe_id).peer is None


async def test_a_handler_must_not_wait_for_another_endpoint(service: RpcService) -> None:
    _, gateway = await started(service)
    with pytest.raises(RpcError, match="hand_off"):
        await gateway.ask_myself()
    assert await gateway.ask_myself_deferred() == 1


# --- deferred, handed off, timers ------------------------------------------------------------------------


async def test_a_deferred_answer_does_not_hold_the_mailbox(service: RpcService) -> None:
    actor, gateway = await started(service)
    waiting = asyncio.create_task(gateway.later(7))
    await actor.waiting.wait()
    assert await gateway.put(1) == 1
    assert not waiting.done()
    actor.gate.set()
    assert await waiting == 7


async def test_handed_off_work_comes_back_on_the_main_thread(service: RpcService) -> None:
    actor, gateway = await started(service)
    blocked = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()

    async def work() -> str:
        return "result"

    async def broken() -> str:
        raise ValueError("broken")

    def failed(error: BaseException) -> None:
        actor.diary.append(repr(error))

    tasks = [actor.hand_off(work(), actor.diary.append), actor.hand_off(broken(), actor.diary.append, failed)]
    await asyncio.wait(tasks)
    assert actor.diary == ["start"], "the main thread is taken"
    actor.gate.set()
    await blocked
    await until(lambda: actor.diary == ["start", 0, "result", "ValueError('broken')"])


async def test_failures_that_no_caller_awaits_go_to_the_service_and_the_endpoint_keeps_running(
    service: RpcService, failures: Failures
) -> None:
    actor, gateway = await started(service)

    async def broken() -> None:
        raise ValueError("handed off")

    def post_broken() -> None:
        raise ValueError("posted")

    async def await_cancelled() -> None:
        await actor.cancelled_inside()

    actor.hand_off(broken())
    actor.post(post_broken)
    actor.post(await_cancelled)
    actor.call_later(0, post_broken)
    await until(lambda: len(failures) == 4)
    assert {type(error) for _, error in failures} == {ValueError, asyncio.CancelledError}
    assert all(endpoint is actor for endpoint, _ in failures)
    assert await gateway.put(1) == 1


async def test_a_timer_fires_on_the_main_thread_and_can_be_cancelled(service: RpcService) -> None:
    actor, gateway = await started(service)
    blocked = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    actor.call_later(0, actor.diary.append, "timer")
    actor.call_later(0, actor.diary.append, "never").cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert actor.diary == ["start"]
    actor.gate.set()
    await blocked
    await until(lambda: actor.diary == ["start", 0, "timer"])


async def test_timers_and_results_of_handed_off_work_bypass_a_full_mailbox(service: RpcService) -> None:
    actor, gateway = await started(service, Actor(mailbox_capacity=1))
    blocked = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    actor.post(actor.diary.append, "fills it")

    async def work() -> str:
        return "result"

    actor.hand_off(work(), actor.diary.append)
    actor.call_later(0, actor.diary.append, "timer")
    await until(lambda: actor.stats.depth == 3)
    actor.gate.set()
    await blocked
    await until(lambda: len(actor.diary) == 5)


# --- timeouts and cancellation --------------------------------------------------------------------------


async def test_a_queued_call_that_timed_out_is_never_run(service: RpcService) -> None:
    actor, gateway = await started(service)
    blocked = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    with pytest.raises(RpcTimeout, match=r"wait_briefly of actor .* 0\.05 s"):
        await gateway.wait_briefly()
    actor.gate.set()
    await blocked
    assert await gateway.put(1) == 1
    assert actor.diary == ["start", 0, 1]


async def test_a_running_handler_completes_although_its_caller_was_cancelled(service: RpcService) -> None:
    actor, gateway = await started(service)
    asking = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    actor.gate.set()
    assert await gateway.put(1) == 1
    assert actor.diary == ["start", 0, 1]


async def test_a_deferred_answer_is_cancelled_when_its_caller_times_out(service: RpcService) -> None:
    actor, gateway = await started(service)
    with pytest.raises(RpcTimeout):
        await gateway.later_briefly()
    await actor.deferred_cancelled.wait()


async def test_deferred_work_begins_although_its_caller_was_cancelled_before(service: RpcService) -> None:
    """Otherwise nothing would undo what the handler has already done."""

    class GivenUp(Actor):
        async def later(self, number: int) -> int:
            asking.cancel()  # who asks runs before the deferred work
            return await super().later(number)

    actor, gateway = await started(service, GivenUp())
    asking = asyncio.create_task(gateway.later(1))
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(actor.deferred_cancelled.is_set)


# --- start and stop ---------------------------------------------------------------------------------------


async def test_stopping_completes_the_running_message_refuses_the_rest_and_runs_on_stop_last(
    service: RpcService,
) -> None:
    actor, gateway = await started(service)
    running = asyncio.create_task(gateway.wait(0))
    await actor.waiting.wait()
    queued = asyncio.create_task(gateway.put(1))
    deferred_cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            deferred_cancelled.set()

    actor.hand_off(forever(), actor.diary.append)
    actor.call_later(0.001, actor.diary.append, "timer")
    await asyncio.sleep(0)
    stopping = asyncio.create_task(service.stop(actor))
    await asyncio.sleep(0)
    with pytest.raises(EndpointNotFound):
        await gateway.put(2)
    with pytest.raises(EndpointStopped):
        actor.post(actor.diary.append, 3)
    actor.gate.set()
    await running
    with pytest.raises(EndpointStopped, match="before put ran"):
        await queued
    await stopping
    assert deferred_cancelled.is_set()
    assert actor.diary == ["start", 0, "stop"]
    assert not actor.running


async def test_an_endpoint_may_stop_itself(service: RpcService) -> None:
    actor, gateway = await started(service)
    await gateway.stop_myself()
    await until(lambda: actor.diary == ["start", "stop"])
    with pytest.raises(EndpointNotFound):
        await gateway.put(1)


async def test_handed_off_work_may_stop_its_endpoint(service: RpcService) -> None:
    actor, _ = await started(service)
    await actor.hand_off(service.stop(actor))
    assert actor.diary == ["start", "stop"]


async def test_a_failing_start_raises_its_error_and_leaves_no_endpoint_behind(service: RpcService) -> None:
    class Broken(Actor):
        async def on_start(self) -> None:
            self.hand_off(asyncio.Event().wait())
            raise ValueError("no disk")

    broken = Broken()
    with pytest.raises(ValueError, match="no disk"):
        await service.start(broken)
    assert broken.diary == [], "what did not start is not stopped"
    _, gateway = await started(service)
    assert await gateway.put(1) == 1


async def test_a_start_that_is_cancelled_leaves_nothing(service: RpcService) -> None:
    class Slow(Actor):
        async def on_start(self) -> None:
            self.waiting.set()
            await asyncio.Event().wait()

    slow = Slow()
    starting = asyncio.create_task(service.start(slow))
    await slow.waiting.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not slow.running
    await started(service)


async def test_an_error_in_on_stop_goes_to_the_service(service: RpcService, failures: Failures) -> None:
    class Broken(Actor):
        async def on_stop(self) -> None:
            raise ValueError("cannot stop")

    actor, _ = await started(service, Broken())
    await service.stop(actor)
    assert [str(error) for _, error in failures] == ["cannot stop"]


async def test_an_endpoint_name_is_unique_and_an_endpoint_starts_only_once(service: RpcService) -> None:
    actor, _ = await started(service)
    with pytest.raises(RpcError, match="runs already"):
        await service.start(Actor())
    await service.stop(actor)
    with pytest.raises(RpcError, match="was started before"):
        await service.start(actor)


async def test_a_closed_service_stops_its_endpoints_and_starts_none(service: RpcService) -> None:
    actor, gateway = await started(service)
    await service.close()
    assert actor.diary == ["start", "stop"]
    with pytest.raises(EndpointNotFound):
        await gateway.put(1)
    with pytest.raises(RpcError, match="closed"):
        await service.start(Actor())
