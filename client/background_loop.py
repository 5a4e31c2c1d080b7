"""An event loop in a thread, so that blocking code (also in a notebook, whose thread has a loop) can use async code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from sluice.core import end_tasks

_Value = TypeVar("_Value")


class BackgroundLoop:
    """Runs coroutines in a thread of its own, which does not keep the process alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._submitting = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="sluice-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Value]) -> _Value:
        """Run ``coroutine`` to its end; it is cancelled when the calling thread is interrupted.

        Raises ``concurrent.futures.CancelledError`` once :meth:`close` has begun.
        """
        with self._submitting:
            if self._closing:
                coroutine.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[_Value]) -> Iterator[_Value]:
        """The items of ``source``, each awaited when the caller asks for it."""
        while True:
            item = self.run(_next(source))
            if item is None:
                return
            yield item[0]

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Cancel what still runs, also for other threads that wait for it, run ``last``, and stop the thread."""
        with self._submitting:
            if self._closing:
                if last is not None:
                    last.close()
                return
            self._closing = True
            ending = asyncio.run_coroutine_threadsafe(_end(last), self._loop)  # after all that was submitted
        try:
            ending.result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _end(last: Coroutine[Any, Any, object] | None) -> None:
    own = asyncio.current_task()
    await end_tasks(*(task for task in asyncio.all_tasks() if task is not own))
    if last is not None:
        await last


async def _next(source: AsyncIterator[_Value]) -> tuple[_Value] | None:
    """The next item in a tuple; StopAsyncIteration cannot pass through a future."""
    try:
        return (await anext(source),)
    except StopAsyncIteration:
        return None
