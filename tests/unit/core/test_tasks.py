"""Loops that only a cancellation ends, and steps that run concurrently."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
import time

import pytest

from sluice.core.errors import StoreError
from sluice.core.tasks import end_tasks, in_time, made_in_thread, repeat, side_by_side
from sluice.pki.revocation.revoked_peers import RevokedPeers
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.connection_guard import ConnectionGuard
from tests.hostile import TestPki
from tests.waiting import until


@pytest.mark.parametrize("error", [StoreError("the disk is full"), OSError("no route"), KeyError("forgotten")])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_repeated_step_runs_again_after_any_error(
    error: Exception, caplog: pytest.LogCaptureFixture, *, asynchronous: bool
) -> None:
    done, again = 0, asyncio.Event()

    def step() -> None:
        nonlocal done
        done += 1
        if done > 2:
            again.set()
        raise error

    async def later() -> None:
        await asyncio.sleep(0)
        step()

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(repeat(later if asynchronous else step, 0.0, "nothing is kept"))
        async with asyncio.timeout(20):
            await again.wait()
        assert not task.done()
        await end_tasks(task)
    assert "nothing is kept" in caplog.text
    assert ("Traceback" in caplog.text) is isinstance(error, KeyError)


class _Open(asyncio.Transport):
    """A connection that stays open."""

    def is_closing(self) -> bool:
        """Always false."""
        return False

    def abort(self) -> None:
        """Do nothing."""


async def test_the_connection_guard_keeps_checking_after_an_error(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, several = 0, asyncio.Event()

    def look(_: RevokedPeers) -> int:
        nonlocal looked
        looked += 1
        if looked > 2:
            several.set()
        raise KeyError("nobody thought of this")

    guard = ConnectionGuard(TestPki(tmp_path_factory.mktemp("pki")).process(Role.JOBMANAGER), interval=0.01)
    transport = _Open()
    monkeypatch.setattr(guard, "_end_if_revoked", lambda _: None)
    guard.add(transport)
    monkeypatch.setattr(RevokedPeers, "look", look)
    async with asyncio.timeout(20):
        await several.wait()
    guard.close()


class TestSideBySide:
    """Steps that run concurrently."""

    async def test_side_by_side_steps_all_finish_and_the_first_failure_is_raised(self) -> None:
        ready, done = asyncio.Event(), []

        async def fails(why: str) -> None:
            ready.set()
            raise StoreError(why)

        async def goes_on() -> None:
            await ready.wait()
            done.append(True)

        with pytest.raises(StoreError, match="first"):
            await side_by_side(goes_on(), fails("first"), fails("second"))

        assert done

    async def test_cancelled_side_by_side_steps_have_all_ended(self) -> None:
        started, ended = asyncio.Event(), []

        async def lasts() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        both = asyncio.create_task(side_by_side(lasts(), lasts()))
        await started.wait()
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both

        assert ended == [True, True]

    async def test_side_by_side_failures_are_all_retrieved(self) -> None:
        """No failure is reported to the event loop as that of a task that nobody awaits."""
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        async def fails(why: str) -> None:
            raise StoreError(why)

        with pytest.raises(StoreError, match="first"):
            await side_by_side(fails("first"), fails("second"))

        gc.collect()
        assert not told


class TestInTime:
    """Steps of which only some succeed before the deadline."""

    async def test_only_results_of_steps_that_succeed_in_time_are_returned(self) -> None:
        ended = []

        async def answers(value: int) -> int:
            return value

        async def fails() -> int:
            raise StoreError("it is away")

        async def lasts() -> int:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)
            return 0

        assert await in_time(0.01, answers(1), fails(), lasts(), answers(2)) == [1, 2]
        assert ended == [True]

    async def test_in_time_without_steps_returns_nothing(self) -> None:
        assert await in_time(0) == []

    async def test_failures_of_cancelled_in_time_steps_are_retrieved(self) -> None:
        """As when a JobManager stops while it asks TaskManagers whose connections end at the same time."""
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        started = asyncio.Event()

        async def fails_when_cancelled() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise StoreError("the connection is gone")

        asking = asyncio.create_task(in_time(60, fails_when_cancelled(), fails_when_cancelled()))
        await started.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        del asking
        gc.collect()
        assert not told


class TestMadeInThread:
    """Objects made in a thread."""

    async def test_an_object_made_in_a_thread_is_returned_and_an_error_is_raised(self) -> None:
        def fails() -> socket.socket:
            raise StoreError("there is no room")

        with await made_in_thread(socket.socket) as made:
            assert made.fileno() >= 0
        with pytest.raises(StoreError, match="no room"):
            await made_in_thread(fails)

    @pytest.mark.parametrize("is_late", [False, True])
    async def test_an_object_made_in_a_thread_is_closed_if_the_caller_was_cancelled(self, *, is_late: bool) -> None:
        made: list[socket.socket] = []
        begun, may_go_on = threading.Event(), threading.Event()

        def make() -> socket.socket:
            begun.set()
            assert may_go_on.wait(20)
            made.append(socket.socket())
            return made[0]

        making = asyncio.create_task(made_in_thread(make))
        await until(begun.is_set, "no thread begins")
        if is_late:  # it has been made, and nobody has heard of it
            may_go_on.set()
            while not made:
                time.sleep(0.001)  # noqa: ASYNC251  the event loop is to hear nothing meanwhile
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        may_go_on.set()
        await until(lambda: bool(made) and made[0].fileno() < 0, "it is not closed")
