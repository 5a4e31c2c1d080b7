"""A driver agent without Spark, with the same spec, identity, RPC and blob connections.

The pipeline is a small JSON object:

    {"executors": 2, "end": "when-told" | "succeed-ahead" | "fail" | "crash" | "sleep-before-register",
     "flag": path}

With ``shuffles`` it registers that many shuffles, and prints their places on standard output. With
``alone``, a directory, it records there how often the job runs, and whether two of its drivers ever run
at the same time. ``succeed-ahead`` reports success at once, and ends when the file ``flag`` exists.
``when-told`` asks for executors, and succeeds when the file ``flag`` exists. A TaskManager runs this file
as a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sluice.core.errors import SluiceError
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.blob.client import fetch_blob
from sluice.runtime.gateways import DRIVER, DriverGateway
from sluice.runtime.messages import (
    DriverExit,
    Evidence,
    ExecutorExit,
    ExecutorTarget,
    ExecutorTargets,
    JobProgress,
    SparkRegistration,
    StreamingQuery,
    StreamingState,
    UiPage,
    UiRequest,
)
from sluice.runtime.rpc import RpcEndpoint, RpcService
from sluice.runtime.spark.driver.link.jobmaster_link import JobMasterLink
from sluice.runtime.spark.driver.link.lease import DriverLease
from sluice.runtime.spark.driver.main import DialedPeer, awaited_spec
from sluice.runtime.spark.driver.spec import DriverSpec

POLL_SECONDS = 0.02
BATCHES = 2
"""Batches that each attempt of a streaming job commits."""


class FakeDriver(RpcEndpoint):
    """Prints the calls it receives on standard output, so that tests can read them in the log."""

    def __init__(self, job_id: str) -> None:
        super().__init__(DRIVER, DriverGateway, job_id=job_id)
        self.cancelled = asyncio.Event()
        self.streaming_stopped = False

    async def until_flag(self, flag: Path) -> bool:
        """Wait for ``flag`` or the end of streaming; return False if the driver is cancelled first."""
        while not (self.streaming_stopped or await asyncio.to_thread(flag.exists)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.cancelled.wait(), POLL_SECONDS)
                return False
        return True

    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        print(f"executor {exit_report.executor_id} exited: {exit_report.reason}", flush=True)  # noqa: T201

    async def decommission_executors(self, executor_ids: tuple[int, ...], reason: str) -> None:
        print(f"decommissioned {list(executor_ids)}: {reason}", flush=True)  # noqa: T201

    async def cancel(self, grace_seconds: float) -> None:
        print(f"cancelled with {grace_seconds} s", flush=True)  # noqa: T201
        self.cancelled.set()

    async def connect_port(self) -> int:
        return 0

    async def ui(self, request: UiRequest) -> UiPage:
        """Return a page whose content is the path and query of the request."""
        return UiPage(status=200, media="text/plain", body=f"{request.path}?{request.query}".encode())

    async def stop_streaming(self, grace_seconds: float) -> None:
        print(f"stops streaming within {grace_seconds} s", flush=True)  # noqa: T201
        self.streaming_stopped = True

    async def connections(self) -> Evidence:
        return Evidence()


async def run(spec: DriverSpec) -> None:
    """One attempt; it follows its leader as a real driver does."""
    identity = TlsIdentity(Path(spec.identity_dir))
    service = RpcService(identity)
    endpoint = FakeDriver(spec.job_id)
    await service.start(endpoint)
    leader = spec.leader.finder(service)

    async def dial() -> DialedPeer:
        return DialedPeer(await leader.dial(), spec, leader)

    link = JobMasterLink(
        dial,
        attempt=spec.attempt,
        pid=os.getpid(),
        patience_seconds=max(spec.reconnect_seconds, spec.lease_seconds),
        lease=DriverLease(spec.lease_seconds),
    )
    guards = [asyncio.create_task(link.run()), asyncio.create_task(_die_after(link.lost))]
    assignment = await link.assignment
    target = Path(spec.work_dir) / "pipeline.json"
    await fetch_blob(identity, assignment.blob_host, assignment.blob_port, spec.job_id, assignment.pipeline, target)
    script = json.loads(target.read_bytes())
    print(f"args {list(assignment.args)}", flush=True)  # noqa: T201
    if "alone" in script:
        be_alone(Path(script["alone"]), spec.attempt)
    _start_spark(link, spec, script.get("executors", 0))
    print(f"shuffle {assignment.shuffle}", flush=True)  # noqa: T201
    for shuffle_id in range(script.get("shuffles", 0)):
        await _register_shuffle(link, shuffle_id)
    if "stream" in script:
        await _stream(link, assignment.checkpoints, script["stream"], spec.attempt)
    await _end(link, endpoint, script, spec)
    for guard in guards:
        guard.cancel()
    await service.close()


async def _die_after(lost: asyncio.Future[str]) -> None:
    """Kill this process when its lease expires or is refused, as a real driver does."""
    print(f"lost: {await lost}", file=sys.stderr, flush=True)  # noqa: T201
    os.kill(os.getpid(), signal.SIGKILL)


def be_alone(place: Path, attempt: int) -> None:
    """Record this run in ``place``, and create ``twice`` there if another driver of the job is running."""
    descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT)  # held until the process ends
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (place / "twice").touch()
    with (place / "runs").open("a") as file:
        file.write(f"{attempt}\n")


def _start_spark(link: JobMasterLink, spec: DriverSpec, executors: int) -> None:
    link.spark_started(
        SparkRegistration(
            app_id=f"app-{spec.attempt}",
            driver_url="spark://fake",
            startup_conf={},
            java_options=(),
            executor_memory_mb=spec.executor_memory_mb,
            executor_cores=spec.executor_cores,
        )
    )
    target = ExecutorTarget(
        resource_profile_id=0, total=executors, cores=spec.executor_cores, memory_mb=spec.executor_memory_mb
    )
    link.set_targets(ExecutorTargets(version=1, targets=(target,)))
    link.report_progress(JobProgress(tasks_total=10, tasks_finished=3))


async def _register_shuffle(link: JobMasterLink, shuffle_id: int) -> None:
    try:
        allocation = await link.register_shuffle(shuffle_id, 10)
    except SluiceError as error:
        print(f"shuffle {shuffle_id} has no place: {error}", flush=True)  # noqa: T201
        return
    names = ",".join(worker.name for worker in allocation.workers)
    print(f"shuffle {shuffle_id} is {allocation.shuffle_number} on {names}", flush=True)  # noqa: T201


async def _stream(link: JobMasterLink, checkpoints: str, batches: list[int], attempt: int) -> None:
    """Commit batches one after the other as Spark does: write to the checkpoint's log, then report."""
    commits = Path(checkpoints.removeprefix("file://")) / "rows" / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    location = str(commits.parent)
    for batch in batches[(attempt - 1) * BATCHES : attempt * BATCHES]:
        (commits / str(batch)).write_text("v1\n{}")
        for name in ("metadata", f"offsets/{batch}"):
            (commits.parent / name).parent.mkdir(exist_ok=True)
            (commits.parent / name).write_text("v1\n{}")
        query = StreamingQuery(
            id="q", run_id=str(attempt), name="rows", location=location, state="RUNNING", batch=batch
        )
        link.report_streaming(StreamingState(queries=(query,)))


async def _end(link: JobMasterLink, endpoint: FakeDriver, script: dict[str, Any], spec: DriverSpec) -> None:
    match script["end"]:
        case "fail":
            await link.finish(
                DriverExit(succeeded=False, exit_code=1, error="KeyError: 'x'", traceback="Traceback …\nKeyError: 'x'")
            )
        case "fail-first" if spec.attempt <= script["failures"]:
            await link.finish(
                DriverExit(succeeded=False, exit_code=1, error=f"ValueError: {spec.attempt}", traceback="Traceback …")
            )
        case "crash-first" if spec.attempt <= script["failures"]:
            while link._queue:  # noqa: ASYNC110  # what it has said is heard
                await asyncio.sleep(POLL_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "ignore-cancel":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("deaf", flush=True)  # noqa: T201
            await asyncio.sleep(600)
        case "succeed-ahead":
            link.succeeded()
            await endpoint.until_flag(Path(script["flag"]))
            await link.finish(DriverExit(succeeded=True, exit_code=0))
        case _:
            done = await endpoint.until_flag(Path(script["flag"]))
            await link.finish(DriverExit(succeeded=done, exit_code=0 if done else 1))


def main() -> None:
    """Wait for the driver's spec like a real driver, and run with output in ``driver.stdout``."""
    spec = awaited_spec(Path(sys.argv[1]))
    with contextlib.suppress(FileExistsError):
        sys.stdout = (Path(spec.log_dir) / "driver.stdout").open("w")
    asyncio.run(run(spec))


if __name__ == "__main__":
    main()
