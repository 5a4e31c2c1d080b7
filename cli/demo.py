"""``sluice demo``: a cluster, a job and its certificates in one command, from an empty folder."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sluice.cli.errors import CommandError
from sluice.cli.jobs import COLUMNS, Follower, all_connections, connection_rows, report_verdict
from sluice.cli.options import ConfigOption, load_configuration
from sluice.cli.tables import print_table
from sluice.client import GatewayAccess, GatewayClient, edge_connection, gateway_client, local_url
from sluice.core import Home

DEMO_HOME = Path(".sluice/demo")
TOKEN_LIFETIME = dt.timedelta(hours=1)


def demo(
    home: Annotated[Path, typer.Option("--home", help="Where the demo's own cluster keeps its state.")] = DEMO_HOME,
    config: ConfigOption = None,
    executors: Annotated[int, typer.Option(min=1, max=16, help="Executors to ask for.")] = 2,
) -> None:
    """Start a cluster, submit the certificate inventory through the gateway, show result and connections, stop."""
    located, configuration = load_configuration(home, config, gateway__port=0)
    console = Console(stderr=True)
    raise typer.Exit(asyncio.run(_Demo(located, console, executors).run(configuration)))


class _Demo:
    def __init__(self, home: Home, console: Console, executors: int) -> None:
        self.home = home
        self.console = console
        self.executors = executors

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def step(self, line: str) -> None:
        self.console.print(f"\n» {line}", style="bold", highlight=False, markup=False, soft_wrap=True)

    async def run(self, configuration: Any) -> int:  # noqa: ANN401  Configuration, imported late
        from sluice.cli.cluster import Launcher

        self.step("Starting CA, Envoy, auth service, JobManager and TaskManagers, each with its own certificate")
        stop, ready = asyncio.Event(), asyncio.Event()
        self._stop_on_signals(stop)
        started = time.monotonic()
        launcher = Launcher(self.home, configuration, None, self.say)
        cluster = asyncio.create_task(launcher.run(ready.set, stop))
        try:
            await _first(ready.wait(), stop.wait(), cluster)
            if cluster.done():
                await cluster
            if stop.is_set():
                return 130
            self.say(f"ready after {time.monotonic() - started:.1f} s")
            work = asyncio.create_task(self._show())
            await _first(work, stop.wait(), cluster)
            if work.done():
                return await work
            work.cancel()
            return 130
        finally:
            self.step("Stopping everything")
            stop.set()
            if not ready.is_set():
                cluster.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cluster
            self.say("nothing is left running")

    def _stop_on_signals(self, stop: asyncio.Event) -> None:
        import signal

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)

    async def _show(self) -> int:
        import sluice.pipelines

        self.step("Creating an API token (only its hash is stored) for user demo, role submitter")
        target = self._target()
        self.say(f"token valid for {TOKEN_LIFETIME}, gateway at {target.url}")
        pipeline = Path(next(iter(sluice.pipelines.__path__))) / "cert_inventory.py"
        self.step(f"Submitting {pipeline.name} through the gateway over HTTPS")
        async with gateway_client(target) as client:
            job_id = await client.submit(pipeline, {"args": [], "executors": self.executors})
            self.say(f"job {job_id}")
            job = await Follower(client, job_id, self.console).until_end()
            code = report_verdict(job, self.console)
            if code == 0:
                await self._show_connections(client, target, job_id)
            return code

    def _target(self) -> GatewayAccess:
        from sluice.gateway.credentials import create_token

        token = create_token(self.home, name="demo", role="submitter", lifetime=TOKEN_LIFETIME)
        return GatewayAccess(local_url(self.home), self.home.pki / "authorities" / "edge" / "cert.pem", token)

    async def _show_connections(self, client: GatewayClient, target: GatewayAccess, job_id: str) -> None:
        connections = await all_connections(client, job_id)
        if not connections:
            raise CommandError("the cluster reported no internal connection", "see the logs")
        edge = await edge_connection(target)
        domain = edge.peer.rpartition("/gateway/")[0] + "/"
        self.step(f"Connections of this run, with the identity on both ends, below {domain}")
        rows = [("edge", "API token of demo", edge.peer.removeprefix(domain), edge.protocol, edge.cipher)]
        rows += connection_rows(connections, job_id, below=domain)
        print_table(COLUMNS, rows)
        self.say(f"job {job_id[:8]}… is {job_id}; inside, both ends of every line proved who they are")


async def _first(*awaitables: Any) -> None:  # noqa: ANN401
    tasks: Iterable[asyncio.Future[Any]] = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, awaitable in zip(tasks, awaitables, strict=True):
        if task is not awaitable and not task.done():
            task.cancel()
