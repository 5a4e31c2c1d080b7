"""``sluice submit`` and ``sluice jobs``: pipelines, through the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sluice.cli.cluster import never, watch_for_stop
from sluice.cli.errors import UsageError
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.jobs.connections import connections
from sluice.cli.jobs.follow import Follower, report_verdict
from sluice.cli.jobs.job_table import print_jobs
from sluice.cli.jobs.other_targets import TargetOptions, submit_to_target
from sluice.cli.jobs.restart_options import SettingsOption, StrategyOption, restart_wish
from sluice.cli.jobs.state_option import wanted_states
from sluice.cli.jobs.submit_target import SubmitTarget
from sluice.cli.options import ConfigOption, JobArgument, JsonOption
from sluice.client import ClientError, GatewayClient, JobLog, Submission, build_submission, latest_jobs, whole_id

app = typer.Typer(no_args_is_help=True, help="List, inspect and cancel jobs, read their logs (through the gateway).")
app.command()(connections)


@through_gateway
def submit(
    pipeline: Annotated[Path, typer.Argument(help="The PySpark pipeline: one Python file.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the pipeline, after --.")] = None,
    name: Annotated[str, typer.Option(help="Name of the job; default: the file's name.")] = "",
    executors: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Executors to ask for; default: the cluster's spark.executors.")
    ] = None,
    executor_cores: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Cores of each executor; default: those of the cluster's slots.")
    ] = None,
    executor_memory: Annotated[
        str | None,
        typer.Option(help="Heap of each executor, such as 2g or 1536m; default: that of the cluster's slots."),
    ] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="Spark setting KEY=VALUE; repeatable.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="Extra file in the working folder; repeatable.")
    ] = None,
    py_files: Annotated[
        list[str] | None,
        typer.Option(
            "--py-files", help="Modules for Python's path: .py, .zip, .egg, .whl; with commas, or repeatable."
        ),
    ] = None,
    archives: Annotated[
        list[str] | None,
        typer.Option("--archives", help="Archive to unpack, FILE or FILE#DIRECTORY; with commas, or repeatable."),
    ] = None,
    python: Annotated[
        str,
        typer.Option(help="The Python of driver and executors, in an archive: env/bin/python; default: the cluster's."),
    ] = "",
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            help="Secret that the driver gets as a file in memory, /run/secrets/NAME: NAME[@VERSION][=FILE]; "
            "repeatable.",
        ),
    ] = None,
    executor_secret: Annotated[
        list[str] | None,
        typer.Option("--executor-secret", help="The same for driver and executors; repeatable."),
    ] = None,
    restart_strategy: StrategyOption = None,
    restart: SettingsOption = None,
    target: Annotated[
        SubmitTarget,
        typer.Option(
            help="session: the running cluster; per-job: a cluster started here for this job only; "
            "yarn, kubernetes: Spark's own cluster managers."
        ),
    ] = SubmitTarget.SESSION,
    render: Annotated[
        Path | None,
        typer.Option(
            help="With yarn and kubernetes: write the files that would be submitted into this directory, and stop."
        ),
    ] = None,
    config: ConfigOption = None,
    from_savepoint: Annotated[
        str, typer.Option("--from-savepoint", help="Id or path of the savepoint that streaming queries resume from.")
    ] = "",
    identity_token: Annotated[
        list[str] | None,
        typer.Option(
            "--identity-token",
            help="AUDIENCE=NAME: keep a token of the job for AUDIENCE in the file NAME of $SLUICE_TOKEN_DIRECTORY, if "
            "the policy gives it; repeatable.",
        ),
    ] = None,
    aws_role_arn: Annotated[
        str,
        typer.Option(
            "--aws-role-arn", help="Role that clients of AWS and S3 in the job take with the token of the first file."
        ),
    ] = "",
    queue: Annotated[
        str,
        typer.Option(help="Queue whose share of the slots the executors get; default: the first one you may use."),
    ] = "",
    priority: Annotated[
        int, typer.Option(min=0, max=100, help="Priority in the queue, up to what it allows; higher ones come first.")
    ] = 0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show progress and the driver's output until the job ends.")
    ] = False,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Submit a PySpark pipeline through the gateway.

    Exit codes with --wait, or --target per-job: 0 the job finished, 1 it failed or was cancelled.

    Example: sluice submit pipelines/cert_inventory.py --wait -- --input /etc/ssl/certs
    """
    submission = build_submission(
        pipeline,
        args or [],
        name=name,
        executors=executors,
        executor_cores=executor_cores,
        executor_memory=executor_memory,
        spark_conf=parse_conf(conf or []),
        files=file or [],
        py_files=[Path(each) for each in comma_separated(py_files)],
        archives=comma_separated(archives),
        python=python,
        restart=restart_wish(restart_strategy, restart or []),
        savepoint=from_savepoint,
        secrets=secret or [],
        executor_secrets=executor_secret or [],
        token_files=parse_token_files(identity_token or []),
        aws_role_arn=aws_role_arn,
        queue=queue,
        priority=priority,
    )
    if (queue or priority) and target is not SubmitTarget.SESSION:
        raise UsageError("--queue or --priority without a running cluster", "a cluster's configuration has its queues")
    if identity_token and target is not SubmitTarget.SESSION:
        raise UsageError(
            "--identity-token can be used only with a running cluster", "its gateway has the policy and the audit log"
        )
    if target is not SubmitTarget.SESSION:
        if secret or executor_secret:
            raise UsageError(f"--secret with --target {target}", "secrets are those of a running cluster: leave it out")
        how = TargetOptions(gateway.home, config, gateway.server, render, as_json)
        raise typer.Exit(submit_to_target(target, submission, how))
    if render is not None:
        raise UsageError("--render without --target", "use it with --target yarn or kubernetes")
    stopped = watch_for_stop(gateway.located_home) if gateway.server is None else never
    submit_it = partial(_submit, submission, wait=wait, as_json=as_json, stopped=stopped)
    raise typer.Exit(gateway.call(submit_it))


def parse_conf(settings: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` each; raises :class:`UsageError` for anything else."""
    parsed = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise UsageError(f"--conf {setting!r} is not KEY=VALUE")
        parsed[key] = value
    return parsed


def parse_token_files(options: list[str]) -> dict[str, str]:
    """``AUDIENCE=NAME`` each, as name -> audience; raises :class:`UsageError` for anything else."""
    parsed: dict[str, str] = {}
    for option in options:
        audience, _, name = option.rpartition("=")
        if not audience or not name or name in parsed:
            raise UsageError(f"--identity-token {option!r} is not AUDIENCE=NAME with a name of its own")
        parsed[name] = audience
    return parsed


def comma_separated(options: list[str] | None) -> list[str]:
    """The values of an option as in spark-submit: separated by commas, or given several times."""
    return [each.strip() for option in options or [] for each in option.split(",") if each.strip()]


async def _submit(
    submission: Submission, client: GatewayClient, *, wait: bool, as_json: bool, stopped: Callable[[], bool]
) -> int:
    console = Console(stderr=True)
    job_id = await client.submit(submission.pipeline, submission.request, submission.files)
    if not wait:
        print(json.dumps({"job_id": job_id}) if as_json else job_id)
        return 0
    console.print(f"submitted {submission.pipeline.name} as job {job_id}", highlight=False)
    output: list[str] = []
    follower = Follower(client, job_id, console, stopped=stopped)
    if as_json:
        follower.write = output.append
    try:
        job = await follower.until_end()
    except asyncio.CancelledError:
        console.print(f"no longer watching; job {job_id} goes on (sluice jobs cancel {job_id})", highlight=False)
        raise
    if as_json:
        print(json.dumps({**job, "output": "".join(output)}))
    return report_verdict(job, console)


@app.command("list", epilog="Examples: sluice jobs list --state active; sluice jobs list --owner ada --limit 20")
@through_gateway
def list_jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only jobs in this state, such as FAILED; active, ended: all such states; repeatable."),
    ] = None,
    owner: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most jobs to list, the latest ones.")] = 1000,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Running and recent jobs, newest first."""
    states = wanted_states(state or [])
    jobs = gateway.call(lambda client: latest_jobs(client, states, owner, limit))
    if as_json:
        print(json.dumps({"jobs": jobs}))
        return
    print_jobs(jobs)


def _spark_ui(gateway: GatewayOptions, job_id: str) -> Any:  # noqa: ANN401  JSON is what it is
    """The place of a job's Spark UI; None: the token may not see it, or the cluster is an earlier release."""
    try:
        return gateway.get(f"/v1/jobs/{job_id}/spark-ui")
    except ClientError:
        return None


@app.command()
@through_gateway
def show(
    job_id: JobArgument,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """One job: state, progress, executors, failure, and where its Spark UI is, also when it has ended."""
    job = gateway.get_of_job(job_id)
    spark_ui = _spark_ui(gateway, job["id"])
    if as_json:
        print(json.dumps(job if spark_ui is None else {**job, "spark_ui": spark_ui}))
        return
    console = Console()
    for key in ("id", "name", "owner", "state", "attempt"):
        console.print(f"{key:>9}  {job[key]}", highlight=False, markup=False)
    progress = job["progress"]
    console.print(f"{'tasks':>9}  {progress['tasks_finished']}/{progress['tasks_total']}", highlight=False)
    if job.get("checkpoints"):
        console.print(f"{'committed':>9}  {job['checkpoints']} checkpoints", highlight=False)
    for executor in job["executors"]:
        line = f"{'executor':>9}  {executor['id']} on {executor['taskmanager']}: {executor['state']}"
        console.print(f"{line} {executor.get('exit_reason') or ''}".rstrip(), highlight=False, markup=False)
    if job.get("pending_reason"):
        console.print(f"{'waiting':>9}  {job['pending_reason']}", highlight=False, markup=False)
    for attempt in job.get("attempts", [])[:-1]:
        line = f"{'attempt':>9}  {attempt['number']}: {attempt['outcome']} {attempt['error']}".rstrip()
        console.print(line, highlight=False, markup=False)
    if spark_ui is not None:
        shown = f"{gateway.access().url}{spark_ui['path']}" if spark_ui["path"] else "none"
        reason = f" ({spark_ui['reason']})" if spark_ui["reason"] else ""
        console.print(f"{'Spark UI':>9}  {shown}{reason}", highlight=False, markup=False, soft_wrap=True)
    if job.get("failure"):
        console.print(f"{'failure':>9}  {job['failure']['error']}", highlight=False, markup=False)
        console.print(job["failure"]["traceback"], highlight=False, markup=False, soft_wrap=True)


@app.command()
@through_gateway
def cancel(
    job_id: JobArgument,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Cancel a job: its Spark jobs first, then its driver and executors."""

    async def call(client: GatewayClient) -> str:
        found = await whole_id(client, job_id)
        await client.patch(f"/v1/jobs/{found}", mode="cancel")
        return found

    found = gateway.call(call)
    print(json.dumps({"job_id": found, "cancelling": True}) if as_json else f"cancelling {found}")


@app.command(epilog="Examples: sluice jobs logs 3f9c --follow; sluice jobs logs 3f9c --tail 50 --source driver.stdout")
@through_gateway
def logs(
    job_id: JobArgument,
    source: Annotated[str, typer.Option(help="driver.stdout, driver.stderr, executor-1.stderr, …")] = "driver.stderr",
    list_sources: Annotated[bool, typer.Option("--list", help="List the job's logs.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new output until the job has ended.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, max=1_000_000, help="Print only this many lines from the end.")
    ] = None,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Print one of a job's logs: all of it, its last lines, or new lines as they come."""
    if follow and (as_json or list_sources):
        raise UsageError("--follow cannot be used with --json or --list", "a stream is not one document")
    if list_sources:
        names = gateway.get_of_job(job_id, "/logs")["logs"]
        print(json.dumps(names) if as_json else "\n".join(names))
        return
    pieces: list[str] = []
    write = pieces.append if as_json else partial(print, end="", flush=follow)

    stopped = watch_for_stop(gateway.located_home) if gateway.server is None else never

    async def read(client: GatewayClient) -> None:
        found = await whole_id(client, job_id)
        log = JobLog(client, found, source)
        if follow:
            log.client = Follower(client, found, Console(stderr=True), stopped=stopped)
        offset = 0
        if tail is not None:
            text, offset = await log.tail(tail)
            write(text)
        if follow or tail is None:
            async for text in log.follow(offset) if follow else log.pieces():
                write(text)

    gateway.call(read)
    if as_json:
        print(json.dumps({"source": source, "data": "".join(pieces)}))
