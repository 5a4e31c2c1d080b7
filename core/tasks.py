"""Ends tasks, runs several at once, and repeats a step until cancelled."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol, TypeVar

from sluice.core.errors import SluiceError

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel all ``tasks`` and wait until they have ended; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def side_by_side(*steps: Coroutine[Any, Any, object]) -> None:
    """Run all ``steps`` at the same time, each to its end; then raise the error of the first that failed.

    The failure of one does not cancel the others, so that the caller can clean up what they made. When the caller is
    cancelled, all steps are cancelled and have ended when this raises.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.wait(tasks)
    finally:
        await end_tasks(*tasks)
    for task in tasks:
        task.result()


async def in_time(seconds: float, *steps: Coroutine[Any, Any, _T]) -> list[_T]:
    """The results of the ``steps`` that succeed within ``seconds``; cancels the others and waits for their end.

    Cancels all when the caller is cancelled.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
    finally:
        await end_tasks(*tasks)
    return [task.result() for task in tasks if not task.cancelled() and task.exception() is None]


class _Closable(Protocol):
    def close(self) -> object: ...


_C = TypeVar("_C", bound=_Closable)


async def made_in_thread(make: Callable[[], _C]) -> _C:
    """Call ``make`` in a thread. When the caller is cancelled, the thread goes on and its result is closed."""

    def close(made: asyncio.Future[_C]) -> None:
        if not made.cancelled() and made.exception() is None:
            made.result().close()

    making = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(close)
        raise


async def repeat(step: Callable[[], object], seconds: float, failure: str) -> NoReturn:
    """Call ``step``, which may be asynchronous, every ``seconds`` until cancelled; the first time after ``seconds``.

    Errors are logged and do not end the loop, because nobody would notice its end.

    Args:
        step: what is done.
        seconds: between the end of one call and the start of the next.
        failure: what the log says when it failed, as in ``"the keys are not renewed"``.
    """
    while True:
        await asyncio.sleep(seconds)
        try:
            done = step()
            if inspect.isawaitable(done):
                await done
        except (SluiceError, OSError) as error:
            _LOG.error("%s: %s", failure, error)  # its message says what is wrong, without a traceback
        except Exception:  # noqa: BLE001  # unexpected errors
            _LOG.exception("%s", failure)
