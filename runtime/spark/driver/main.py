"""The driver agent: ``python -m sluice.runtime.spark.driver.main SPEC.json``, one process per driver attempt.

A TaskManager starts the agent, prepares the driver's files, writes a
:class:`sluice.runtime.spark.driver.spec.DriverSpec`, and then sends one line to the agent's standard input. Without
that line the agent exits. An agent that was started before its driver is known (``--spare``) gets the path of the spec
with that line. The agent connects to the JobManager with the identity of the job's driver, serves ``DriverGateway``
over that connection, and runs the driver (:mod:`sluice.runtime.spark.driver.agent`). SIGTERM cancels the driver.

Exit codes: 0: the result was reported, whatever it is; 1: it could not be reported; 2: wrong usage; 75: the processes
that waited for the driver (``--wait``) could not be used, and no code of the job has run.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

from sluice.core import SluiceError, end_tasks
from sluice.pki.tls import TlsIdentity
from sluice.pki.trust import reporting
from sluice.runtime.gateways import DRIVER, DriverGateway, JobMasterGateway, jobmaster_endpoint
from sluice.runtime.job_network import AttachmentClient
from sluice.runtime.messages import BlobRef, DriverAssignment, DriverExit, Evidence, ExecutorExit, UiPage, UiRequest
from sluice.runtime.node import Leader, forbid_core_dumps
from sluice.runtime.rpc import RemotePeer, RpcEndpoint, RpcService
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.spark.driver.agent import DriverAgent
from sluice.runtime.spark.driver.connect import published_port
from sluice.runtime.spark.driver.link import DriverLease, JobMasterLink
from sluice.runtime.spark.driver.program import WaitingDriver, WaitingSpec
from sluice.runtime.spark.driver.spec import BEGIN, EXIT_UNUSABLE, SPARE, DriverSpec
from sluice.runtime.spark.driver.ui_client import UI_SOCKET, ask_ui
from sluice.runtime.spark.errors import DriverFailed, WarmProcessUnusable
from sluice.runtime.spark.evidence import read_evidence
from sluice.runtime.spark.jvm import find_spark_runtime, make_temp_dir, remove_temp_dir

_LOG = logging.getLogger(__name__)

MAX_PATH_BYTES = 4096
"""PATH_MAX of Linux."""
LOADED_LATER = ("sluice.runtime.blob.client",)
"""Modules that an agent loads while its JVM starts, and a spare agent beforehand."""
WAIT = "--wait"
"""The option for the path of a :class:`~sluice.runtime.spark.driver.waiting.WaitingSpec`."""


class Agent(Protocol):
    """Runs one attempt (:class:`~sluice.runtime.spark.driver.agent.DriverAgent`)."""

    async def run(self) -> DriverExit:
        """Run the attempt to its end, which follows soon if the link is lost."""
        ...


class DriverEndpoint(RpcEndpoint):
    """The RPC endpoint of a driver for its JobMaster."""

    def __init__(self, agent: DriverAgent, spec: DriverSpec) -> None:
        super().__init__(DRIVER, DriverGateway, job_id=spec.job_id)
        self._agent = agent
        self._reports = Path(spec.reports_dir)
        self._work = Path(spec.work_dir)

    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """Tell Spark why an executor has ended."""
        self._agent.executor_exited(exit_report)

    async def decommission_executors(self, executor_ids: tuple[int, ...], reason: str) -> None:
        """Make Spark migrate the blocks of executors and then end them."""
        self._agent.bridge.decommission_executors(executor_ids, reason)

    async def cancel(self, grace_seconds: float) -> None:
        """Cancel all Spark jobs, then end the driver within ``grace_seconds``."""
        self._agent.cancel(grace_seconds)

    async def stop_streaming(self, grace_seconds: float) -> None:
        """Stop all streaming queries. The pipeline continues after its ``awaitTermination``."""
        self._agent.stop_streaming(grace_seconds)

    async def connections(self) -> Evidence:
        """The mutual TLS connections that the driver's JVM made or accepted."""
        return read_evidence(self._reports)

    async def connect_port(self) -> int:
        """The port of this session's Spark Connect server; 0: it does not listen yet."""
        return self.deferred(asyncio.to_thread(published_port, self._work))

    async def ui(self, request: UiRequest) -> UiPage:
        """A page of Spark's UI; status 502 to 504: the UI is not available."""
        return self.deferred(self._ui(request))

    async def _ui(self, request: UiRequest) -> UiPage:
        page = await ask_ui(self._agent.bridge.path.with_name(UI_SOCKET), request)
        return self._agent.masker.mask_message(page)


class DialedPeer:
    """A connection to the JobManager, used for the JobMaster of this job."""

    def __init__(self, peer: RemotePeer, spec: DriverSpec, leader: Leader) -> None:
        self._peer = peer
        self._spec = spec
        self._leader = leader

    @property
    def jobmaster(self) -> JobMasterGateway:
        """The JobMaster's methods over this connection."""
        return self._peer.gateway(JobMasterGateway, jobmaster_endpoint(self._spec.job_id), token=self._spec.token)

    async def wait_closed(self) -> None:
        """Return when the connection is gone."""
        await self._peer.wait_closed()

    async def superseded(self) -> bool:
        """Whether another JobManager leads."""
        return await self._leader.superseded(self._peer)

    async def close(self) -> None:
        """End the connection."""
        await self._peer.close()


async def run_driver(spec: DriverSpec, waiting: WaitingDriver | None = None) -> int:
    """Run one driver attempt, with waiting JVM and Python processes if given; return the agent's exit code."""
    identity = TlsIdentity(Path(spec.identity_dir))
    expected = f"spiffe://{spec.trust_domain}/job/{spec.job_id}/driver"
    if str(identity.spiffe_id) != expected:
        raise DriverFailed(f"the identity is {identity.spiffe_id}, not {expected}")
    if waiting is None:
        attachments = AttachmentClient(spec.attachments) if spec.attachments >= 0 else None
        spark = spec.spark if spec.spark is not None else await asyncio.to_thread(find_spark_runtime)
        sandbox = await asyncio.to_thread(_sandbox, spec)
    else:
        attachments, spark, sandbox = waiting.attachments, waiting.spark, waiting.sandbox
    service = RpcService(identity)

    leader = spec.leader.finder(service)

    async def dial() -> DialedPeer:
        return DialedPeer(await leader.dial(), spec, leader)

    async def fetch(assignment: DriverAssignment, ref: BlobRef, target: Path) -> None:
        from sluice.runtime.blob import fetch_blob  # imports an HTTP client, so load it while the JVM starts

        host, port, name = assignment.blob_host, assignment.blob_port, assignment.jobmanager
        await fetch_blob(identity, host, port, spec.job_id, ref, target, jobmanager=name)

    temp_dir = make_temp_dir() if waiting is None else waiting.temp
    link = JobMasterLink(
        dial,
        attempt=spec.attempt,
        pid=os.getpid(),
        patience_seconds=max(spec.reconnect_seconds, spec.lease_seconds),
        lease=DriverLease(spec.lease_seconds),
    )
    agent = DriverAgent(spec, spark, sandbox, link, fetch, temp_dir, attachments, waiting)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.cancel, spec.stop_grace_seconds)
    try:
        async with reporting(identity, "driver-agent"):
            await service.start(DriverEndpoint(agent, spec))
            result = await run_linked(agent, link)
    finally:
        with contextlib.suppress(SluiceError):
            await service.close()
        remove_temp_dir(temp_dir)
    _LOG.info("driver of job %s: %s", spec.job_id, "succeeded" if result.succeeded else result.error)
    return 1 if link.lost.done() else 0


def _sandbox(spec: DriverSpec | WaitingSpec) -> Sandbox:
    private = [*map(Path, spec.private_dirs)]
    if spec.trial is None:
        return Sandbox.prepare(spec.isolation, private=private)
    return Sandbox.as_tried(spec.trial, spec.isolation, private=private)


async def run_linked(agent: Agent, link: JobMasterLink) -> DriverExit:
    """Run the attempt while keeping the link up.

    Raises:
        DriverFailed: the link ended with an internal error.
    """
    keeping = asyncio.create_task(link.run())
    try:
        return await agent.run()
    finally:
        await end_tasks(keeping)
        error = None if keeping.cancelled() else keeping.exception()
        if error is not None:
            raise DriverFailed(
                f"the connection to the JobMaster ended with an internal error: {type(error).__name__}: {error}",
                "this is a bug, please report it; the driver was stopped",
            ) from error


def awaited_spec(path: Path) -> DriverSpec:
    """Wait until the TaskManager has written the spec, and read it.

    Raises:
        DriverFailed: the TaskManager closed standard input without starting the driver.
    """
    if sys.stdin.buffer.readline(len(BEGIN)) != BEGIN:
        raise DriverFailed("the TaskManager cancelled this driver before its start")
    return DriverSpec.read(path)


def spare_spec() -> DriverSpec:
    """Wait as a spare agent until the TaskManager tells the path of the spec, and read it.

    Raises:
        DriverFailed: the line is not a path.
    """
    for name in LOADED_LATER:
        importlib.import_module(name)
    line = sys.stdin.buffer.readline(MAX_PATH_BYTES)
    if not line.endswith(b"\n"):
        raise DriverFailed(f"the path of the spec is cut off, or has more than {MAX_PATH_BYTES} bytes")
    return _enter(Path(os.fsdecode(line.removesuffix(b"\n"))))


def _enter(spec: Path) -> DriverSpec:
    """Make the driver's directory the working directory, which shows whose agent this is, and read its spec."""
    os.chdir(spec.parent)
    return DriverSpec.read(spec)


async def wait_for_driver(spec: WaitingSpec) -> int:
    """Wait for a driver with a JVM and a Python process, and run it; return the exit code of the agent."""
    spark = spec.spark if spec.spark is not None else await asyncio.to_thread(find_spark_runtime)
    waiting = WaitingDriver(spec, spark, await asyncio.to_thread(_sandbox, spec))
    try:
        await waiting.start()
        told = await _told_path(waiting)
        return 0 if told is None else await run_driver(_enter(told), waiting)
    finally:
        await waiting.end()
        remove_temp_dir(waiting.temp)


async def _told_path(waiting: WaitingDriver) -> Path | None:
    """Wait for the path of the driver's spec; None: this process is not needed.

    Raises:
        DriverFailed: the JVM or Python process has ended, or the line is too long.
    """
    reader = asyncio.StreamReader(limit=MAX_PATH_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    reading = asyncio.create_task(reader.readline(), name="the line that says which driver this is")
    ending = asyncio.create_task(waiting.ended(), name="end of JVM or Python")
    try:
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise DriverFailed("the waiting JVM or Python process has ended")
        line = os.fsdecode(reading.result())
        waiting.confirm()
    except ValueError as error:
        raise DriverFailed(f"the path of the spec has more than {MAX_PATH_BYTES} bytes") from error
    finally:
        await end_tasks(reading, ending)
    return Path(line.removesuffix("\n")) if line.endswith("\n") else None


def main(argv: list[str]) -> int:
    """Command line entry point; ``argv`` without the program's name."""
    waits = len(argv) == 2 and argv[0] == WAIT
    if len(argv) != 1 and not waits:
        sys.stderr.write("usage: echo begin | python -m sluice.runtime.spark.driver.main SPEC.json\n")
        sys.stderr.write(f"       echo SPEC.json | python -m sluice.runtime.spark.driver.main {SPARE}\n")
        sys.stderr.write(f"       echo SPEC.json | python -m sluice.runtime.spark.driver.main {WAIT} WAITING.json\n")
        return 2
    forbid_core_dumps()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if waits:
            return asyncio.run(wait_for_driver(WaitingSpec.read(Path(argv[1]))))
        return asyncio.run(run_driver(spare_spec() if argv[0] == SPARE else awaited_spec(Path(argv[0]))))
    except WarmProcessUnusable as error:
        _LOG.warning("%s", error)
        return EXIT_UNUSABLE
    except SluiceError as error:
        unexpected = error.__cause__ if isinstance(error, DriverFailed) else None
        _LOG.error("%s", error, exc_info=unexpected)  # for expected errors, a traceback would hide the remedy
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
