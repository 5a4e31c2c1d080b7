"""The driver agent's connection to its JobMaster: delivers calls in order, and reconnects for a limited time.

Calls are delivered in the order in which they were queued, and each is repeated until it is answered (``call_queue``).
After a reconnection the driver registers and reports its state again (``reported_state``), because the JobMaster may
belong to a new leader that knows nothing of it (ADR 103). The link is lost if no JobMaster is found for too long, or if
the JobMaster refuses this driver. The owner of the link must then stop the driver (:attr:`JobMasterLink.lost`).

The driver also holds a lease (``lease``). It starts when the last answered renewal was *sent*, because that is the
latest time at which the JobManager certainly led.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from sluice.core import PeerRefused, SluiceError, end_tasks
from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.masking import Masker
from sluice.runtime.messages import (
    DriverAssignment,
    DriverExit,
    ExecutorTargets,
    GivenSecret,
    JobProgress,
    OutputLocation,
    ShuffleAllocation,
    SparkRegistration,
    StageTable,
    StreamingState,
    TaskFailure,
)
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    FencingTokenMismatch,
    MailboxFull,
    MethodNotFound,
    PeerUnreachable,
    RpcError,
    RpcTimeout,
)
from sluice.runtime.spark.driver.link.call_queue import RETRY_SECONDS, CallQueue, accepted
from sluice.runtime.spark.driver.link.lease import DriverLease
from sluice.runtime.spark.driver.link.reported_state import ReportedState
from sluice.runtime.spark.errors import DriverFailed

_AWAY = (EndpointNotFound, EndpointStopped, LeadershipLost, MailboxFull, PeerUnreachable, RpcTimeout)
"""Errors that mean that the JobMaster is not, or not yet, at this address."""

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class JobMasterPeer(Protocol):
    """A connection to the JobMaster: a :class:`sluice.runtime.rpc.RemotePeer` bound to the JobMaster's endpoint."""

    @property
    def jobmaster(self) -> JobMasterGateway:
        """The JobMaster's methods over this connection."""
        ...

    async def wait_closed(self) -> None:
        """Return when the connection is gone."""
        ...

    async def superseded(self) -> bool:
        """Whether another JobManager leads, when this one does not answer."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class JobMasterLink:
    """A queue of calls to the JobMaster, and the connection that delivers them.

    Args:
        dial: connects to the leader; raises a :class:`SluiceError` or :class:`OSError` if it cannot.
        attempt, pid: identify the driver at registration.
        patience_seconds: how long the JobMaster may be away.
        lease: the driver's lease; by default one that never expires.
    """

    def __init__(
        self,
        dial: Callable[[], Awaitable[JobMasterPeer]],
        *,
        attempt: int,
        pid: int,
        patience_seconds: float,
        lease: DriverLease | None = None,
    ) -> None:
        self._dial = dial
        self._attempt = attempt
        self._pid = pid
        self._patience = patience_seconds
        self._lease = lease or DriverLease(0)
        self._queue = CallQueue(self._lose)
        self._reported = ReportedState()
        self._registered_before = False
        self._serving: JobMasterPeer | None = None
        self.masker = Masker(())
        """Masks the job's secrets in messages from Spark that users can see."""
        self.latest: DriverAssignment | None = None
        """The answer to the latest registration, because the location of blobs may have changed."""
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.assignment: asyncio.Future[DriverAssignment] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def room(self) -> None:
        """Wait until fewer than :data:`BUSY_CALLS` are queued for the JobMaster, or it is lost."""
        await self._queue.room(self.lost)

    async def issue_token(self, audience: tuple[str, ...]) -> str:
        """A token of this driver.

        Raises:
            TokenRefused: the JobMaster issues none.
            PeerUnreachable: there is no connection.
        """
        if self._serving is None:
            raise PeerUnreachable("there is currently no connection to the JobMaster")
        return (await self._serving.jobmaster.issue_driver_token(self._attempt, audience)).token

    async def token_keys(self) -> str:
        """The public keys of tokens.

        Raises:
            PeerUnreachable: there is no connection.
        """
        if self._serving is None:
            raise PeerUnreachable("there is currently no connection to the JobMaster")
        return (await self._serving.jobmaster.token_keys()).jwks

    def spark_started(self, registration: SparkRegistration) -> None:
        """Report that a SparkContext is up. Invalidates the targets of an earlier one."""
        self._reported.spark_started(registration)
        self._queue.put(lambda jobmaster: jobmaster.spark_started(registration))

    def set_targets(self, targets: ExecutorTargets) -> None:
        """Report how many executors Spark wants from now on."""
        self._reported.targets = targets
        self._queue.put(lambda jobmaster: jobmaster.set_executor_targets(targets))

    def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        """Report that Spark no longer needs these executors. Delivered after targets that were queued before."""
        self._reported.executors_given_up(executor_ids)
        self._queue.put(lambda jobmaster: jobmaster.kill_executors(executor_ids))

    def executor_exited(self, executor_id: int) -> None:
        """Record that an executor has ended, as the JobMaster reports."""
        self._reported.executor_exited(executor_id)

    def stops_streaming(self) -> None:
        """Record that the JobMaster has requested to stop streaming, for a savepoint that only it knows."""
        self._reported.stopping = True

    def report_progress(self, progress: JobProgress) -> None:
        """Report the latest counters, replacing older ones that are still queued."""
        self._reported.progress = progress
        self._queue.put_state("progress", lambda jobmaster: jobmaster.report_progress(progress))

    def report_stages(self, stages: StageTable) -> None:
        """Report the latest stages, replacing older ones that are still queued."""
        stages = self.masker.mask_message(stages)
        self._reported.stages = stages
        self._queue.put_state("stages", lambda jobmaster: jobmaster.report_stages(stages))

    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        """Ask for the workers of a new shuffle.

        The request is sent after the calls queued before, but the queue does not wait for its answer. It is repeated
        after a reconnection. Raises the JobMaster's error, or :class:`DriverFailed` if the link is lost.
        """

        def ask(jobmaster: JobMasterGateway) -> Awaitable[ShuffleAllocation]:
            self._reported.asked += 1
            return jobmaster.register_shuffle(shuffle_id, partitions)

        allocation = await self._ask(ask, f"the place of shuffle {shuffle_id}")
        self._reported.shuffle_placed(shuffle_id, allocation.shuffle_number, partitions)
        return allocation

    async def locate_shuffle(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        """Ask for the current locations of a shuffle's outputs, like :meth:`register_shuffle`."""
        return await self._ask(lambda jobmaster: jobmaster.locate_shuffle(shuffle_id), f"shuffle {shuffle_id}")

    async def secrets(self) -> tuple[GivenSecret, ...]:
        """Ask for the secrets of the job, like :meth:`register_shuffle`."""
        return await self._ask(lambda jobmaster: jobmaster.driver_secrets(self._attempt), "the job's secrets")

    async def _ask(self, question: Callable[[JobMasterGateway], Awaitable[_T]], what: str) -> _T:
        while True:
            asked: asyncio.Future[Awaitable[_T]] = asyncio.get_running_loop().create_future()

            async def ask(
                jobmaster: JobMasterGateway,
                asked: asyncio.Future[Awaitable[_T]] = asked,
            ) -> None:
                if not asked.done():
                    asked.set_result(asyncio.ensure_future(question(jobmaster)))
                    await asyncio.sleep(0)  # sends the request before the calls that are queued behind it

            self._queue.put(ask)
            await first_of(asked, self.lost)
            if not asked.done():
                raise DriverFailed(f"the JobMaster is lost: {self.lost.result()}")
            try:
                return await asked.result()
            except _AWAY as error:
                _LOG.info("asking for %s again: %s", what, error)
            await asyncio.sleep(RETRY_SECONDS)

    def unregister_shuffle(self, shuffle_id: int) -> None:
        """Report that Spark does not need the shuffle any more."""
        self._reported.shuffle_over(shuffle_id)
        self._queue.put(lambda jobmaster: jobmaster.unregister_shuffle(shuffle_id))

    def shuffle_workers_lost(self, shuffle_id: int, workers: tuple[str, ...]) -> None:
        """Report that these workers of the shuffle cannot be reached."""
        self._queue.put(lambda jobmaster: jobmaster.shuffle_workers_lost(shuffle_id, workers))

    def report_streaming(self, state: StreamingState) -> None:
        """Report the latest state of streaming queries. Repeated after a reconnection."""
        state = self.masker.mask_message(state)
        self._reported.streaming = state
        self._queue.put(lambda jobmaster: jobmaster.report_streaming(state), state="streaming")

    def report_task_failure(self, failure: TaskFailure) -> None:
        """Report that a task failed."""
        masked = self.masker.mask_message(failure)
        self._queue.put(lambda jobmaster: jobmaster.report_task_failure(masked))

    def succeeded(self) -> None:
        """Report that the attempt has succeeded while its JVM still shuts down; :meth:`finish` follows."""

        async def tell(jobmaster: JobMasterGateway) -> None:
            with contextlib.suppress(MethodNotFound):  # a JobMaster of the previous release waits for finish()
                await jobmaster.driver_succeeded()

        self._queue.put(tell)

    async def finish(self, result: DriverExit) -> None:
        """Report the result and wait until it is delivered.

        Raises:
            DriverFailed: the link is lost.
        """
        masked = self.masker.mask_message(result)
        done = self._queue.put(lambda jobmaster: jobmaster.driver_finished(masked))
        await first_of(done, self.lost)
        if not done.done():
            raise DriverFailed(f"cannot report the end of the driver: {self.lost.result()}")

    async def run(self) -> None:
        """Keep the link up until it is lost or this coroutine is cancelled.

        An internal error loses the link as well, and is raised: otherwise the driver would run without being fenced.
        """
        keeping = asyncio.ensure_future(self._keep_up())
        watch = asyncio.ensure_future(self._watch_lease())
        try:
            try:
                await first_of(keeping, watch)
                if watch.done():
                    watch.result()
                await keeping
            finally:
                await end_tasks(keeping, watch)
        except Exception as error:
            self._lose(f"internal error: {type(error).__name__}: {error}")
            raise

    async def _watch_lease(self) -> None:
        await self._lease.over()
        _LOG.error("the lease has expired without an answer from a leading JobManager")
        self._lose("the lease has expired: another JobManager may have started the job again")

    async def _keep_up(self) -> None:
        try:
            while True:
                peer = await self._connect()
                try:
                    await self._serve(peer)
                finally:
                    with contextlib.suppress(RpcError, OSError):
                        await peer.close()
                _LOG.warning("the connection to the JobMaster is lost; reconnecting")
        except SluiceError as error:
            _LOG.error("the JobMaster is lost: %s", error)
            self._lose(str(error))

    async def reassigned(self, than: DriverAssignment, seconds: float) -> DriverAssignment | None:
        """The assignment of a registration later than that of ``than``; None: there is none within ``seconds``."""
        if self.latest is than:
            waited: set[asyncio.Future[Any]] = {self._next, self.lost}
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return None if self.latest is than else self.latest

    def _lose(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
            self._queue.wake()

    async def _connect(self) -> JobMasterPeer:
        """Find the JobMaster and register, with retries within the patience. Raises errors that are final."""
        logged = ""
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    try:
                        return await self._registered(await self._dial())
                    except (FencingTokenMismatch, _Refused):
                        raise
                    except (SluiceError, OSError) as error:
                        if str(error) != logged:
                            logged = str(error)
                            _LOG.info("no JobMaster yet: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError as error:
            raise DriverFailed(f"no JobManager for {self._patience:g} seconds: {logged}") from error

    async def _registered(self, peer: JobMasterPeer) -> JobMasterPeer:
        try:
            assignment = await self._lease.ask(lambda: self._register(peer.jobmaster))
        except PeerRefused as error:
            await peer.close()
            raise _Refused(error.what, error.remedy) from error
        except BaseException:
            await peer.close()
            raise
        self.latest = assignment
        self._next.set_result(None)
        self._next = asyncio.get_running_loop().create_future()
        if not self.assignment.done():
            self.assignment.set_result(assignment)
        return peer

    def _register(self, jobmaster: JobMasterGateway) -> Awaitable[DriverAssignment]:
        known = self.assignment.result() if self.assignment.done() else None
        running = None if known is None else self._reported.running(known.spark_auth_secret)
        return jobmaster.register_driver(self._attempt, self._pid, running)

    async def _serve(self, peer: JobMasterPeer) -> None:
        """Report the state again, then deliver calls until the connection is lost or another JobManager leads."""
        self._serving = peer
        closed = asyncio.ensure_future(peer.wait_closed())
        delivery = asyncio.ensure_future(self._deliver(peer.jobmaster))
        renewal = asyncio.ensure_future(
            self._lease.keep(lambda: peer.jobmaster.renew_lease(self._attempt), peer.superseded)
        )
        try:
            await first_of(closed, delivery, renewal)
            for task in (delivery, renewal):
                if task.done():
                    with contextlib.suppress(*_AWAY):
                        task.result()
        finally:
            self._serving = None
            await end_tasks(closed, delivery, renewal)

    async def _deliver(self, jobmaster: JobMasterGateway) -> None:
        if self._registered_before:
            self._queue.drop_states()
            for call in self._reported.calls():
                await accepted(lambda call=call: call(jobmaster))  # type: ignore[misc]  # default argument
        self._registered_before = True
        await self._queue.deliver(jobmaster)


class _Refused(SluiceError):
    """The JobMaster refuses this driver for good."""


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Return when any of ``futures`` is done. Cancels none of them."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
