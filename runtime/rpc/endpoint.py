"""Endpoints: actors whose methods, timers and posted functions all run on one main thread.

The design follows Flink's ``RpcEndpoint`` (flink-rpc-core). State needs no locks, because no two messages of an
endpoint run at the same time. Long work is handed off, and its result comes back as a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar, cast

from sluice.core import SluiceError
from sluice.pki import SpiffeId
from sluice.runtime.rpc.call import Caller, Invocation, RemotePeer
from sluice.runtime.rpc.contract import Gateway, Method, check_implements, gateway_of
from sluice.runtime.rpc.dead_letters import DeadLetters
from sluice.runtime.rpc.errors import EndpointStopped, RpcError
from sluice.runtime.rpc.mailbox import MAILBOX_CAPACITY, Mailbox, Message
from sluice.runtime.rpc.stats import EndpointStats

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


def _being_cancelled() -> bool:
    """Whether a CancelledError is meant for this task, and not for something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Deferred:
    """Returned by a handler whose answer comes later."""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Awaitable[Any]) -> None:
        self.coroutine = coroutine


class _Posted(Message):
    """A function that runs on the main thread."""

    __slots__ = ("_arguments", "_endpoint", "_function")

    def __init__(self, endpoint: RpcEndpoint, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._endpoint = endpoint
        self._function = function
        self._arguments = arguments

    async def run(self) -> None:
        with self._endpoint.reporting_failures():
            result = self._function(*self._arguments)
            if inspect.isawaitable(result):
                await result


class Host(Protocol):
    """The service that an endpoint runs in; see :class:`sluice.runtime.rpc.service.RpcService`."""

    dead_letters: DeadLetters

    @property
    def spiffe_id(self) -> SpiffeId:
        """The identity of this process."""
        ...

    async def start(self, endpoint: RpcEndpoint) -> None:
        """Start an endpoint."""

    async def stop(self, endpoint: RpcEndpoint) -> None:
        """Stop an endpoint."""

    def local(self, protocol: Callable[..., _T], endpoint: str, *, token: bytes | None = None) -> _T:
        """Return a proxy of an endpoint of this process."""
        ...

    def endpoint_failed(self, endpoint: RpcEndpoint, error: BaseException) -> None:
        """Handle an error in ``endpoint`` that no caller waits for."""


class RpcEndpoint:
    """An actor. Subclasses implement the methods of their gateway as ``async def``.

    Handlers run one at a time to completion. So they must not wait for long, and never for another endpoint: use
    :meth:`hand_off` or :meth:`deferred` for that.

    Args:
        name: the name by which peers address it.
        gateway: the Protocol that it serves.
        mailbox_capacity: maximum number of waiting messages; more are refused with ``MailboxFull``.
        job_id: the job it belongs to; needed for methods declared with ``own_job``.
    """

    service: Host

    def __init__(self, name: str, gateway: type, *, mailbox_capacity: int = MAILBOX_CAPACITY, job_id: str = "") -> None:
        self.name = name
        self.job_id = job_id
        self.gateway: Gateway = gateway_of(gateway)
        check_implements(self, self.gateway)
        self._mailbox = Mailbox(name, mailbox_capacity)
        self._caller: Caller | None = None
        self._failures = 0
        self._tasks: set[asyncio.Future[Any]] = set()
        self._timers: weakref.WeakSet[asyncio.TimerHandle] = weakref.WeakSet()

    # --- for subclasses ---------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Runs on the main thread before the first message. An error here makes ``RpcService.start`` fail."""

    async def on_stop(self) -> None:
        """Runs on the main thread after the last message."""

    def note_failure(self, error: BaseException) -> None:
        """Log and count an unexpected error that affects one piece of work and leaves the endpoint's state intact."""
        self._failures += 1
        _LOG.error("endpoint %s failed: %s", self.name, type(error).__name__, exc_info=error)

    def on_failure(self, error: BaseException) -> None:
        """Handle an error that no caller waits for: from a tell, posted function, timer, ``on_stop`` or unwatched work.

        The error may have left the state inconsistent. The owner of the process (see ``RpcService.on_failure``) or a
        subclass decides what happens to the endpoint; by default it continues.
        """
        self.note_failure(error)
        self.service.endpoint_failed(self, error)

    @property
    def caller(self) -> Caller:
        """The caller. Available only inside a handler, not in work that it handed off or deferred."""
        if self._caller is None or not self._mailbox.on_main_thread:
            raise RpcError(
                f"endpoint {self.name} is not serving a call here", "read self.caller at the handler's start"
            )
        return self._caller

    def post(self, function: Callable[..., object], *args: Any) -> None:  # noqa: ANN401  # passed through
        """Run ``function`` (plain or ``async``) on the main thread, after the waiting messages.

        Raises ``MailboxFull`` or ``EndpointStopped``. Not thread-safe: from other threads, call it through
        ``loop.call_soon_threadsafe``.
        """
        self._mailbox.put(_Posted(self, function, args))

    def call_later(self, delay_s: float, function: Callable[..., object], *args: Any) -> asyncio.TimerHandle:  # noqa: ANN401
        """Run ``function`` on the main thread in ``delay_s`` seconds; cancelled when the endpoint stops."""
        handle = asyncio.get_running_loop().call_later(delay_s, self._post_own, function, args)
        self._timers.add(handle)
        return handle

    def watch(self, peer: RemotePeer, then: Callable[..., object], *args: Any) -> None:  # noqa: ANN401
        """Run ``then`` on the main thread when the stream of ``peer`` ends: closed, broken or silent for too long.

        If the stream has ended already, ``then`` runs soon.
        """
        peer.on_close(lambda: self._post_own(then, args))

    def hand_off(
        self,
        coroutine: Coroutine[Any, Any, _T],
        then: Callable[[_T], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> asyncio.Task[_T]:
        """Run ``coroutine`` outside the mailbox; then run ``then`` or ``failed`` on the main thread with the outcome.

        Without ``failed``, an error goes to :meth:`on_failure`. When the endpoint stops, the coroutine is cancelled and
        neither callback runs.
        """
        task = asyncio.create_task(coroutine, name=f"{self.name} handed off")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._handed_back(done, then, failed))
        return task

    def deferred(self, coroutine: Awaitable[_T]) -> _T:
        """Answer later: ``return self.deferred(work())`` from a handler sends the answer when ``work`` ends.

        The mailbox continues meanwhile. ``work`` runs interleaved with the main thread: it may read and change the
        endpoint's state between its awaits, but the state may change during each await.
        """
        return cast("_T", _Deferred(coroutine))

    # --- for the service ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether messages are accepted."""
        return self._mailbox.running

    @property
    def started(self) -> bool:
        """Whether it has been started; an endpoint can be started only once."""
        return self._mailbox.started

    @property
    def stats(self) -> EndpointStats:
        """Statistics of the mailbox and of processing times."""
        mailbox = self._mailbox
        return EndpointStats(
            name=self.name,
            depth=len(mailbox),
            deepest=mailbox.deepest,
            capacity=mailbox.capacity,
            processed=mailbox.processed,
            refused=mailbox.refused,
            failures=self._failures,
            busy_seconds=mailbox.busy_seconds,
            longest_seconds=mailbox.longest_seconds,
        )

    def accept(self, invocation: Invocation) -> None:
        """Queue an admitted call; raises ``MailboxFull`` or ``EndpointStopped``."""
        self._mailbox.put(invocation)

    def check_fencing(self, method: Method, token: bytes | None) -> None:
        """Raise if the call is stale. An endpoint without fencing refuses no call."""

    async def launch(self, service: Host) -> None:
        """Start the main thread and wait for :meth:`on_start`."""
        self.service = service
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def start() -> None:
            try:
                await self.on_start()
            except Exception as error:  # noqa: BLE001  # any error is raised to the starter of the endpoint
                self._mailbox.stop_soon()
                started.set_exception(error)
            else:
                started.set_result(None)

        async def stop() -> None:
            if started.exception() is None:
                with self.reporting_failures():
                    await self.on_stop()

        self._mailbox.start(start, stop)
        try:
            await started
        except BaseException:
            self._mailbox.abort()
            await self._end_tasks()
            raise

    async def terminate(self) -> None:
        """Finish the current message, run :meth:`on_stop`, refuse waiting messages, cancel timers and handed-off work.

        Called from the endpoint's own main thread, it only starts to stop.
        """
        for timer in list(self._timers):
            timer.cancel()
        if self._mailbox.on_main_thread:
            self._mailbox.stop_soon()
            task = asyncio.create_task(self._finish(), name=f"{self.name} stopping")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        await self._finish()

    def discarded(self, invocation: Invocation) -> None:
        """Record a tell that will not be run as a dead letter, since its sender does not learn of it."""
        if invocation.method.rules.oneway:
            self.service.dead_letters.add(
                self.name, invocation.method.name, str(invocation.caller.identity), EndpointStopped.__name__
            )

    async def serve(self, invocation: Invocation) -> None:
        """Run one call on the main thread and send its answer."""
        self._caller = invocation.caller
        try:
            # Checked here rather than on arrival: the token may have changed while the call waited.
            self.check_fencing(invocation.method, invocation.token)
            result = await getattr(self, invocation.method.name)(*invocation.arguments)
        except Exception as error:  # noqa: BLE001  # any error goes to the caller
            self._answer_failure(invocation, error)
            return
        except asyncio.CancelledError as error:
            self._answer_failure(invocation, error)
            if _being_cancelled():
                raise
            return
        finally:
            self._caller = None
        if isinstance(result, _Deferred):
            task = asyncio.ensure_future(result.coroutine)
            invocation.task = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._answer_deferred(invocation, done))
            if invocation.cancelled:
                invocation.cancel()
        else:
            invocation.answer.succeed(result)

    @contextlib.contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Pass errors of the block to :meth:`on_failure`: none of them may end the main thread."""
        try:
            yield
        except asyncio.CancelledError as error:
            if _being_cancelled():
                raise
            self._tell_failure(error)
        except Exception as error:  # noqa: BLE001  # no message may end the main thread
            self._tell_failure(error)

    # --- inside --------------------------------------------------------------------------------------

    def _tell_failure(self, error: BaseException) -> None:
        try:
            self.on_failure(error)
        except Exception:  # noqa: BLE001  # an error in on_failure must not end the main thread either
            _LOG.exception("endpoint %s failed while handling a failure", self.name)

    def _post_own(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        with contextlib.suppress(EndpointStopped):
            self._mailbox.put(_Posted(self, function, arguments), bounded=False)

    def _handed_back(
        self,
        task: asyncio.Task[_T],
        then: Callable[[_T], object] | None,
        failed: Callable[[BaseException], object] | None,
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._post_own(failed or self.on_failure, (error,))
        elif then is not None:
            self._post_own(then, (task.result(),))

    def _answer_deferred(self, invocation: Invocation, done: asyncio.Future[Any]) -> None:
        self._tasks.discard(done)
        if done.cancelled():
            invocation.answer.fail(EndpointStopped(f"{invocation.method.name} of {self.name} was cancelled"))
        elif (error := done.exception()) is not None:
            self._answer_failure(invocation, error)
        else:
            invocation.answer.succeed(done.result())

    def _answer_failure(self, invocation: Invocation, error: BaseException) -> None:
        expected = isinstance(error, SluiceError)
        if invocation.method.rules.oneway and not expected and not isinstance(error, asyncio.CancelledError):
            invocation.answer.fail(error)
            self._tell_failure(error)
            return
        _LOG.log(
            logging.INFO if expected else logging.ERROR,
            "%s of %s failed for %s: %s",
            invocation.method.name,
            self.name,
            invocation.caller.identity,
            error if expected else type(error).__name__,
            exc_info=None if expected else error,
        )
        invocation.answer.fail(error)

    async def _finish(self) -> None:
        await self._mailbox.stop()
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        pending = {task for task in self._tasks if task is not asyncio.current_task()}
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
