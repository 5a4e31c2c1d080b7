"""The supervision tree of a process: who has whom as a parent, and what becomes of those that fail.

The guardian is the root. An endpoint that is started without a parent is its child; a failure that is escalated
beyond the last endpoint is fatal to the process, whose owner is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sluice.runtime.rpc.endpoint import RpcEndpoint
from sluice.runtime.rpc.errors import RpcError
from sluice.runtime.rpc.supervision import (
    RESUME,
    Directive,
    Restarts,
    Strategy,
    Terminated,
)

Make = Callable[[], RpcEndpoint]
"""Makes the endpoint, anew for each start; always of the same name."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Child:
    name: str
    parent: _Child | None
    make: Make | None
    strategy: Strategy
    restarts: Restarts
    endpoint: RpcEndpoint | None
    children: list[_Child] = field(default_factory=list)
    work: asyncio.Task[None] | None = None
    """The restart or stop in progress."""


class Guardian:
    """Starts, restarts and stops endpoints as strategies say. For use on one event loop.

    Args:
        launch: brings an endpoint up under its name; raises what its ``on_start`` raised.
        terminate: takes it down.
        fatal: told of failures that were escalated to the root.
        clock: monotonic seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        launch: Callable[[RpcEndpoint], Awaitable[None]],
        terminate: Callable[[RpcEndpoint], Awaitable[None]],
        fatal: Callable[[RpcEndpoint, BaseException], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._launch = launch
        self._terminate = terminate
        self._fatal = fatal
        self._clock = clock
        self._sleep = sleep
        self._children: dict[str, _Child] = {}
        self._watchers: dict[str, list[Callable[[Terminated], None]]] = {}
        self._closed = False

    def supervised(self, name: str) -> bool:
        """Whether there is an endpoint of that name, running or about to be started again."""
        return name in self._children

    def restarts(self) -> dict[str, int]:
        """How often each endpoint was started again."""
        return {name: child.restarts.total for name, child in self._children.items()}

    async def start(
        self,
        endpoint: RpcEndpoint,
        *,
        make: Make | None = None,
        strategy: Strategy = RESUME,
        parent: RpcEndpoint | None = None,
    ) -> None:
        """Start ``endpoint``, and ``make`` its successors; without ``make`` it cannot be restarted."""
        if endpoint.name in self._children:
            raise RpcError(f"an endpoint named {endpoint.name} runs already", "stop it first")
        above = None
        if parent is not None:
            above = self._children.get(parent.name)
            if above is None or above.endpoint is not parent:
                raise RpcError(f"{parent.name}, the parent of {endpoint.name}, does not run")
        child = _Child(endpoint.name, above, make, strategy, Restarts(strategy, clock=self._clock), endpoint)
        self._children[child.name] = child
        if above is not None:
            above.children.append(child)
        try:
            await self._launch(endpoint)
        except BaseException as error:
            self._remove(child, error)
            raise

    async def stop(self, endpoint: RpcEndpoint | str) -> None:
        """Stop ``endpoint`` for good, its children before it; by name: whoever has it, also between two starts."""
        child = self._children.get(endpoint if isinstance(endpoint, str) else endpoint.name)
        if child is not None and (isinstance(endpoint, str) or child.endpoint is endpoint):
            if child.work is not None and child.work is not asyncio.current_task():
                child.work.cancel()
            await self._stop(child, None)

    async def close(self) -> None:
        """Stop everything, the latest first."""
        self._closed = True
        for child in reversed(list(self._children.values())):
            if child.work is not None:
                child.work.cancel()
            await self._stop(child, None)

    def watch(self, name: str, told: Callable[[Terminated], None]) -> Callable[[], None]:
        """Tell when ``name`` is gone for good (at once, if it is not there); returns what ends the watch."""
        if name not in self._children:
            told(Terminated(name))
            return lambda: None
        watchers = self._watchers.setdefault(name, [])
        watchers.append(told)
        return lambda: watchers.remove(told) if told in watchers else None

    def failed(self, endpoint: RpcEndpoint, error: BaseException) -> None:
        """An endpoint has failed: do what its parent's strategy says."""
        child = self._children.get(endpoint.name)
        if child is None or child.endpoint is not endpoint or child.work is not None or self._closed:
            return
        self._treat(child, error)

    # --- inside ----------------------------------------------------------------------------------------

    def _treat(self, child: _Child, error: BaseException) -> None:
        try:
            directive = child.strategy.decide(error)
        except Exception:  # noqa: BLE001  # whatever a strategy raises
            _log.exception("the strategy for %s failed, the failure is escalated", child.name)
            directive = Directive.ESCALATE
        if directive is Directive.RESUME:
            return
        pause = None
        if directive is Directive.RESTART:
            pause = child.restarts.next_pause() if child.make is not None else None
            if pause is None:
                _log.error("endpoint %s cannot be restarted again, the failure is escalated", child.name)
                directive = Directive.ESCALATE
        if directive is Directive.ESCALATE:
            self._escalate(child, error)
            return
        _log.warning("endpoint %s failed (%s): %s", child.name, type(error).__name__, directive.value)
        work = self._stop(child, error) if pause is None else self._restart(child, pause)
        child.work = asyncio.create_task(work, name=f"{directive.value} {child.name}")

    def _escalate(self, child: _Child, error: BaseException) -> None:
        parent = child.parent
        if parent is None:
            _log.critical("the failure of endpoint %s is fatal: %s", child.name, type(error).__name__)
            if child.endpoint is not None:
                self._fatal(child.endpoint, error)
        elif parent.work is None:
            self._treat(parent, error)

    async def _restart(self, child: _Child, pause: float) -> None:
        """Stop the endpoint that failed and start another one; a start that fails is a failure again."""
        await self._stop_children(child)
        old, child.endpoint = child.endpoint, None
        if old is not None:
            await self._terminate(old)
        await self._sleep(pause)
        if child.make is None or self._children.get(child.name) is not child:
            return
        endpoint = child.make()
        if endpoint.name != child.name:
            raise RpcError(f"the successor of {child.name} is called {endpoint.name}", "keep the name")
        child.endpoint = endpoint
        try:
            await self._launch(endpoint)
        except Exception as error:  # noqa: BLE001  # whatever on_start raised
            child.work = None
            self._treat(child, error)
        else:
            child.work = None
            _log.info("endpoint %s runs again", child.name)

    async def _stop(self, child: _Child, error: BaseException | None) -> None:
        await self._stop_children(child)
        endpoint = child.endpoint
        self._remove(child, error)
        if endpoint is not None:
            await self._terminate(endpoint)

    async def _stop_children(self, child: _Child) -> None:
        for each in reversed(list(child.children)):
            if each.work is not None:
                each.work.cancel()
            await self._stop(each, None)

    def _remove(self, child: _Child, error: BaseException | None) -> None:
        if self._children.get(child.name) is not child:
            return
        del self._children[child.name]
        if child.parent is not None:
            child.parent.children.remove(child)
        for told in self._watchers.pop(child.name, []):
            told(Terminated(child.name, error))
