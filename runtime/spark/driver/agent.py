"""Runs one driver attempt: fetches the program, runs JVM and Python, and relays between Spark and the JobMaster.

Connections to the JobManager are in ``runtime.spark.driver.link.jobmaster_link``. A function argument fetches blobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sluice.core import SluiceError, end_tasks
from sluice.pki import SpiffeId
from sluice.runtime.job_network import AttachmentClient
from sluice.runtime.masking import Masker
from sluice.runtime.messages import (
    DriverAssignment,
    DriverExit,
    ExecutorExit,
    ExecutorTargets,
    JobProgress,
    SparkRegistration,
    StageTable,
    StreamingState,
    TaskFailure,
)
from sluice.runtime.node import Exit
from sluice.runtime.out_of_memory import KernelKills
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.shuffle.control_plane import ShuffleServiceError
from sluice.runtime.spark.driver.bridge import (
    Bridge,
    BridgeEvent,
    KillExecutors,
    LocateShuffle,
    RegisterShuffle,
    ShuffleAnswer,
    ShuffleWorkersLost,
    SparkStopped,
    StreamingStopped,
    UnregisterShuffle,
)
from sluice.runtime.spark.driver.conf import driver_conf, kind_conf
from sluice.runtime.spark.driver.event_log import EventLogReceiver
from sluice.runtime.spark.driver.link import JobMasterLink, first_of
from sluice.runtime.spark.driver.program import (
    DriverPlaces,
    DriverProcess,
    FetchBlob,
    Program,
    WaitingDriver,
    with_failover,
)
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.spark.driver.verdict import Ending, judge
from sluice.runtime.spark.errors import WarmProcessUnusable
from sluice.runtime.spark.job_python import install_job_python
from sluice.runtime.spark.jvm import Gateway, SparkRuntime
from sluice.runtime.workload import WorkloadPlace

KILL_GRACE_SECONDS = 2.0
"""The time between SIGTERM and SIGKILL when a Python process is stopped."""

JVM_LOSS_GRACE_SECONDS = 5.0
"""How long the pipeline may take to fail by itself after its JVM has ended."""


class Closing(Protocol):
    """An object that must be closed."""

    async def close(self) -> None:
        """Close the object."""
        ...


MAX_QUESTIONS = 64
"""Maximum number of a JVM's unanswered questions about shuffles. Until some are answered, the agent stops reading."""

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class DriverAgent:
    """Runs one attempt.

    Attributes:
        bridge: the connection to Spark, over which the JobMaster's messages are forwarded.
        masker: masks the job's secrets in messages from Spark.
    """

    def __init__(  # noqa: PLR0917  # the collaborators of an attempt
        self,
        spec: DriverSpec,
        spark: SparkRuntime,
        sandbox: Sandbox,
        link: JobMasterLink,
        fetch: FetchBlob,
        temp_dir: Path,
        attachments: AttachmentClient | None = None,
        waiting: WaitingDriver | None = None,
    ) -> None:
        self._spec = spec
        self._link = link
        self._fetch = with_failover(fetch, link)
        places = self._places = DriverPlaces(Path(spec.work_dir), Path(spec.reports_dir), Path(spec.log_dir), temp_dir)
        if waiting is None:
            places.make()
        self.masker = Masker(())
        self.bridge = Bridge(places.bridge, self._on_spark_event)
        self._process = DriverProcess(spec, spark, sandbox, places, attachments, waiting)
        self._events = (
            EventLogReceiver(places.events, places.logs, spec.event_log_bytes, lambda: self.masker)
            if spec.event_log_bytes
            else None
        )
        self._workload: Closing | None = None
        self._cancelled: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._spark_lost = False
        self._kills = KernelKills()
        self._kills_before = self._kills.count
        self._questions: set[asyncio.Task[None]] = set()
        self.bridge.room = self._room

    def cancel(self, grace_seconds: float) -> None:
        """Cancel all Spark jobs, then end the driver within the grace period. Idempotent."""
        if not self._cancelled.done():
            self._cancelled.set_result(grace_seconds)

    def executor_exited(self, exit_report: ExecutorExit) -> None:
        """Tell Spark why an executor has ended."""
        self._link.executor_exited(exit_report.executor_id)
        self.bridge.executor_exited(exit_report)

    def stop_streaming(self, grace_seconds: float) -> None:
        """Stop all streaming queries for a savepoint that ends the job."""
        self._link.stops_streaming()
        self.bridge.stop_streaming(grace_seconds)

    async def run(self) -> DriverExit:
        """Run the attempt to its end, report the result, and return it.

        A success is reported as soon as the pipeline has ended and Spark has stopped, while the JVM still shuts down.

        Raises:
            WarmProcessUnusable: the waiting processes cannot be used. Nothing is reported: no code of the job has
                run, so another agent may run the attempt.
        """
        try:
            await self.bridge.start()
            if self._events is not None:
                self._events.start()
            result = judge(await self._attempt())
        finally:
            for question in self._questions:
                question.cancel()
            await self._stop_receiving()
        if not self._link.lost.done():
            await self._link.finish(result)
        return result

    async def _stop_receiving(self) -> None:
        """Stop receiving from Spark, after messages that were already sent. Idempotent."""
        await self.bridge.close()
        if self._events is not None:
            await asyncio.to_thread(self._events.close)

    async def _attempt(self) -> Ending:
        try:
            assignment = await self._first(self._link.assignment)
            if assignment is None:
                return self._ending(None)
            if assignment.secrets:
                self._process.check_secrets()
                secrets = await self._first(asyncio.ensure_future(self._link.secrets()))
                if secrets is None:
                    return self._ending(None)
                self.masker = self._link.masker = self._process.set_secrets(secrets)
            program = Program(assignment, self._places.work / "app", self._places.logs / "fetched")
            pipeline = program.pipeline
            conf = driver_conf(
                self._spec,
                assignment.spark_conf,
                assignment.spark_auth_secret,
                pipeline.files,
                packages=pipeline.packages,
                extra=kind_conf(assignment, self._spec.host, self._spec.ports.get("connect", 0)),
            )
            gateway = await self._first(asyncio.ensure_future(self._make_ready(assignment, program, conf)))
            if gateway is None:
                return self._ending(None)
            await self._process.start_python(pipeline, gateway)
            return await self._wait()
        except (SluiceError, OSError, TimeoutError) as error:
            if isinstance(error, WarmProcessUnusable) and not self._cancelled.done() and not self._link.lost.done():
                raise
            _LOG.exception("the driver could not be run")
            return self._ending(None, failure=str(error))
        finally:
            await self._process.stop_python(KILL_GRACE_SECONDS)
            await self._process.stop_jvm(0 if self._link.lost.done() else self._spec.stop_grace_seconds)
            if self._workload is not None:
                await self._workload.close()

    async def _serve_workload(self, assignment: DriverAssignment, place: WorkloadPlace) -> None:
        """Serve the Workload API, from which JVM and Python get their identities.

        Raises:
            TokenUnavailable: a token file was refused.
        """
        from sluice.runtime.workload import WorkloadServer  # imports a gRPC server, so load it while the JVM starts

        spiffe_id = SpiffeId.driver(self._spec.trust_domain, self._spec.job_id)
        self._workload = server = WorkloadServer(
            place,
            Path(self._spec.identity_dir),
            spiffe_id,
            ask=self._link.issue_token,
            ask_keys=self._link.token_keys,
            files=assignment.token_files,
        )
        await server.start()

    async def _first(self, work: asyncio.Future[_T]) -> _T | None:
        """The result of ``work``; None: before that, the driver was cancelled or lost its JobMaster."""
        await first_of(work, self._cancelled, self._link.lost)
        if work.done():
            return work.result()
        await end_tasks(work)
        return None

    async def _make_ready(self, assignment: DriverAssignment, program: Program, conf: Mapping[str, str]) -> Gateway:
        """Start the JVM; meanwhile fetch the program and serve the Workload API. The first failure cancels the rest."""
        place = self._process.prepare_workload_api(assignment.token_files)
        own = bool(assignment.python)  # its archive must be unpacked before a JVM runs in the same directory
        if own:
            await self._install(assignment, program)
        try:
            await self._process.launch_jvm(conf, assignment.checkpoints)
            _LOG.info("the JVM runs")
            async with asyncio.TaskGroup() as all_of:
                listening = all_of.create_task(self._process.gateway())
                all_of.create_task(self._serve_workload(assignment, place))
                if not own:
                    all_of.create_task(self._process.prepare_python())
                    all_of.create_task(program.fetch(assignment, self._fetch, self._process.own))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        _LOG.info("the JVM listens for the pipeline")
        return listening.result()

    async def _install(self, assignment: DriverAssignment, program: Program) -> None:
        """Fetch the program, and unpack its own Python."""
        await program.fetch(assignment, self._fetch, self._process.own)
        pipeline = program.pipeline
        archives, place = pipeline.packages.archives, pipeline.script.parent
        await install_job_python(pipeline.python, archives, self._places.work, place, self._process.run_in_box)

    async def _wait(self) -> Ending:
        python = asyncio.ensure_future(self._process.wait_python())
        jvm = asyncio.ensure_future(self._process.wait_jvm())
        stopping: asyncio.Future[Exit | None] | None = None
        try:
            await first_of(python, jvm, self._cancelled, self._link.lost)
            jvm_was_first = jvm.done() and not python.done()
            if not python.done():
                await self._end_early(python, jvm)
            ended = await python
            _LOG.info("the pipeline has ended: %s", ended)
            spark_lost = self._spark_lost
            # Ask the JVM to exit only now. If it was killed a moment ago, this reveals it.
            grace = 0 if self._link.lost.done() else self._spec.stop_grace_seconds
            stopping = asyncio.ensure_future(self._process.stop_jvm(grace))
            if not jvm.done():
                await self._report_early_success(ended, stopping)
            jvm_ended = await stopping
            _LOG.info("the JVM has ended: %s", jvm_ended or "it had to be killed")
            died = jvm_ended if jvm_ended is not None and (jvm_was_first or jvm_ended.code != 0) else None
            return self._ending(ended, jvm_died=died, spark_lost=spark_lost)
        finally:
            for task in (python, jvm, *(() if stopping is None else (stopping,))):
                task.cancel()

    async def _report_early_success(self, python: Exit, stopping: asyncio.Future[Exit | None]) -> None:
        """Report a success while the JVM shuts down, once every SparkContext has stopped normally (ADR 143).

        Nothing can change the verdict after that: output and event log are complete.
        """
        if python.code != 0 or not self.bridge.contexts or self._process.jvm_excess_so_far():
            return
        idle = asyncio.ensure_future(self.bridge.wait_idle())
        try:
            await first_of(idle, stopping, self._cancelled, self._link.lost)
            spark_is_over = idle.done() and not stopping.done()
        finally:
            await end_tasks(idle)
        result = judge(self._ending(python, spark_lost=self._spark_lost))
        if not spark_is_over or not result.succeeded:
            return
        await self._process.stop_python(KILL_GRACE_SECONDS)  # stops its child processes as well
        await self._stop_receiving()
        _LOG.info("the attempt has succeeded, and the JVM shuts down")
        self._link.succeeded()

    async def _end_early(self, python: asyncio.Future[Exit], jvm: asyncio.Future[Exit]) -> None:
        """Stop the pipeline, because the driver was cancelled, its JVM ended, or its JobMaster is lost."""
        if self._cancelled.done():
            self.bridge.cancel()
            await asyncio.wait({python}, timeout=self._cancelled.result())
        elif jvm.done() and not self._process.excess:
            await asyncio.wait({python}, timeout=JVM_LOSS_GRACE_SECONDS)
        await self._process.stop_python(KILL_GRACE_SECONDS)

    def _ending(
        self, python: Exit | None, *, jvm_died: Exit | None = None, spark_lost: bool = False, failure: str = ""
    ) -> Ending:
        return Ending(
            python=python,
            jvm_died=jvm_died,
            spark_lost=spark_lost,
            cancelled=self._cancelled.done(),
            fenced=self._link.lost.done(),
            failure=failure,
            stderr_tail=self._process.stderr_tail(),
            memory_mb=self._spec.driver_memory_mb,
            kernel_killed=self._kills.count > self._kills_before,
            excess=self._process.excess,
            limits=self._process.enforced_limits,
        )

    async def _room(self) -> None:
        """Wait until there is room for more messages, so that a JVM, which runs a job's code, cannot exhaust memory."""
        await self._link.room()
        while len(self._questions) >= MAX_QUESTIONS:
            await asyncio.wait(self._questions, return_when=asyncio.FIRST_COMPLETED)

    def _on_spark_event(self, event: BridgeEvent) -> None:
        match event:
            case SparkRegistration():
                self._link.spark_started(event)
            case ExecutorTargets():
                self._link.set_targets(event)
            case KillExecutors(executor_ids):
                self._link.kill_executors(executor_ids)
            case RegisterShuffle():
                registered = self._link.register_shuffle(event.shuffle_id, event.partitions)
                self._answer(self._shuffle_answer(self.bridge.contexts, event, registered))
            case LocateShuffle():
                located = self._link.locate_shuffle(event.shuffle_id)
                self._answer(self._shuffle_answer(self.bridge.contexts, event, located))
            case UnregisterShuffle(shuffle_id):
                self._link.unregister_shuffle(shuffle_id)
            case ShuffleWorkersLost(shuffle_id, workers):
                self._link.shuffle_workers_lost(shuffle_id, workers)
            case StreamingStopped():
                _LOG.info("all streaming queries have ended")
            case SparkStopped(in_order):
                self._spark_lost = self._spark_lost or not in_order
            case _:
                self._report(event)

    def _report(self, report: JobProgress | StageTable | StreamingState | TaskFailure) -> None:
        """Forward a report to the JobMaster, which displays or records it."""
        match report:
            case JobProgress():
                self._link.report_progress(report)
            case StageTable():
                self._link.report_stages(report)
            case StreamingState():
                self._link.report_streaming(report)
            case TaskFailure():
                self._link.report_task_failure(report)

    def _answer(self, answering: Coroutine[Any, Any, None]) -> None:
        question = asyncio.ensure_future(answering)
        self._questions.add(question)
        question.add_done_callback(self._questions.discard)

    async def _shuffle_answer(
        self, context: int, event: RegisterShuffle | LocateShuffle, asked: Awaitable[ShuffleAnswer]
    ) -> None:
        """Answer a question of Spark. On an error, Spark gets the reason and fails the stage."""
        answer: ShuffleAnswer | str
        try:
            answer = await asked
        except Exception as error:  # noqa: BLE001  # Spark waits for an answer in any case
            known = isinstance(error, ShuffleServiceError)
            _LOG.log(logging.WARNING, "shuffle %d has no workers: %s", event.shuffle_id, error, exc_info=not known)
            answer = str(error)
        self.bridge.answer_shuffle(context, event.id, answer)
