"""Clusters that live as long as one job: application mode, and per-job mode.

A session cluster (``sluice up``) takes jobs until it is stopped. In **application** mode, the cluster starts for one
pipeline, runs its program, and ends with the job; started again in the same home it continues an unfinished job. In
**per-job** mode, the client starts a cluster for one submission, in a temporary home; the driver runs beside the client
(like Flink's per-job mode before 1.15).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from sluice.cli.cluster import Launcher, run_until_signal
from sluice.cli.config import Configuration, find_config_file, load
from sluice.cli.errors import EXIT_INTERRUPTED, CommandError
from sluice.cli.jobs.follow import Follower, report_verdict
from sluice.client import TERMINAL, GatewayAccess, GatewayClient, Submission, edge_bundle, gateway_client, local_url
from sluice.core import Home, end_tasks, remove_untrusted
from sluice.gateway import AccessRole
from sluice.gateway.credentials import TokenStore

TOKEN_LIFETIME = timedelta(days=365)
"""Lifetime of the launcher's token for submitting; it is revoked when the cluster ends, and stored nowhere."""


@dataclass
class OneJob:
    """Runs ``submission`` on its own cluster; the exit code is the job's."""

    home: Home
    configuration: Configuration
    config_file: Path | None
    submission: Submission
    console: Console
    as_json: bool = False
    owner: str = "application"
    _outcome: int | BaseException = field(default=EXIT_INTERRUPTED)

    def run(self) -> int:
        """Start the cluster, run the job to its end, and stop; the next start continues an interrupted job."""

        def report(line: str) -> None:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

        launcher = Launcher(self.home, self.configuration, self.config_file, report)
        asyncio.run(self._run(launcher))
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    async def _run(self, launcher: Launcher) -> None:
        stop = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        def ready() -> None:
            tasks.append(asyncio.create_task(self._job(stop)))

        try:
            await run_until_signal(launcher, ready, stop)
        finally:
            await end_tasks(*tasks)

    async def _job(self, stop: asyncio.Event) -> None:
        try:
            with submitters_token(self.home, self.owner) as token:
                target = GatewayAccess(local_url(self.home), edge_bundle(self.home), token)
                async with gateway_client(target) as client:
                    self._outcome = await self._follow(client)
        except Exception as error:  # noqa: BLE001  # raised again after the cluster has stopped
            self._outcome = error
        finally:
            stop.set()

    async def _follow(self, client: GatewayClient) -> int:
        job_id = await self._unfinished(client)
        if job_id:
            self.console.print(f"going on with job {job_id}", highlight=False)
        else:
            job_id = await client.submit(self.submission.pipeline, self.submission.request, self.submission.files)
            self.console.print(f"submitted {self.submission.pipeline.name} as job {job_id}", highlight=False)
        output: list[str] = []
        follower = Follower(client, job_id, self.console)
        if self.as_json:
            follower.write = output.append
        job = await follower.until_end()
        if self.as_json:
            print(json.dumps({**job, "output": "".join(output)}))
        return report_verdict(job, self.console)

    async def _unfinished(self, client: GatewayClient) -> str:
        """The unfinished job of an earlier, interrupted start; empty when there is none."""
        jobs = [job for job in (await client.get("/v1/jobs"))["jobs"] if job["state"] not in TERMINAL]
        if len(jobs) > 1:
            raise CommandError(
                f"{len(jobs)} jobs of this home have not ended",
                "it is the home of a session cluster: start that with `sluice up`, or use another --home",
            )
        return str(jobs[0]["id"]) if jobs else ""


@contextlib.contextmanager
def submitters_token(home: Home, owner: str) -> Iterator[str]:
    """A token for submitting jobs, valid within the block."""
    store = TokenStore(home)
    record, token = store.create(owner, AccessRole.SUBMITTER, TOKEN_LIFETIME)
    try:
        yield token
    finally:
        store.revoke(record.id)


def run_per_job(home: Home, config: Path | None, submission: Submission, console: Console, *, as_json: bool) -> int:
    """Run ``submission`` on a temporary cluster.

    Args:
        home: whose configuration is used.
        config: a configuration file; by default that of ``home``.
    """
    file = find_config_file(config, home.root)
    directory = Path(tempfile.mkdtemp(prefix="sluice-per-job-"))
    try:
        configuration = load(file, flags=_per_job_flags(load(file), submission))
        one = OneJob(Home.at(directory), configuration, file, submission, console, as_json, owner="per-job")
        return one.run()
    finally:
        remove_untrusted(directory.parent, directory.name)


def _per_job_flags(configured: Configuration, submission: Submission) -> dict[str, object]:
    """Options for TaskManagers: enough for the requested executors, and more on demand."""
    asked = submission.request.get("executors") or configured.spark.executors
    least = -(-int(str(asked)) // configured.taskmanager.slots)
    most = max(least, configured.resources.max_taskmanagers)
    return {
        "gateway.port": 0,
        "jobmanager.count": 1,
        "ha.mode": "embedded",
        "resources.provider": "process",
        "resources.max_taskmanagers": most,
        "resources.min_taskmanagers": min(least, most),
    }
