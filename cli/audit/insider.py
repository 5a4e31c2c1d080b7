"""``sluice audit --insider``: submit the hostile pipeline as an ordinary user, and report what it reached."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sluice.audit import Report
from sluice.audit.insider import Outlets, Packed, World, canaries, outlets, packed, read_rows, report_of
from sluice.cli.audit.cluster_access import ClusterAccess, ContainerAccess, HomeAccess
from sluice.cli.audit.leftovers import leftovers_of, losses_of
from sluice.cli.gateway_options import GatewayOptions
from sluice.client import (
    POLL_SECONDS,
    TERMINAL,
    ClientError,
    GatewayAccess,
    GatewayClient,
    JobLog,
    PatientReader,
    announced_url,
    build_submission,
    gateway_client,
)
from sluice.core import Home, StoreError

MAX_OUTPUT_CHARACTERS = 16 << 20
"""Most bytes of the hostile job's output that are read."""
VICTIM_SECONDS = 180.0
"""How long the other job may take to start."""
VICTIM_TOKEN_LIFETIME = dt.timedelta(hours=1)
CANCEL_SECONDS = 30.0
VICTIM = "insider-victim"
HOSTILE = "insider-audit"
_STAYS = "the victim stays"


@dataclass(frozen=True, slots=True)
class InsiderOptions:
    """Options of the examination from inside.

    Attributes:
        limit: how long the hostile job may take, in seconds.
        victim: whether another job runs meanwhile.
        config: configuration of the local cluster, if it is not at the default place.
        compose: directory of the compose file whose containers the cluster runs in.
        project: of these containers, when several run from there.
    """

    limit: float
    victim: bool = True
    config: Path | None = None
    compose: Path | None = None
    project: str = ""


@dataclass(frozen=True, slots=True)
class Inside:
    """The report, and why the job did not finish; empty when it did."""

    report: Report
    cut_short: str = ""


def examine_inside(gateway: GatewayOptions, options: InsiderOptions) -> Inside:
    """Submit the job, wait for it, and judge its results.

    Raises:
        ClientError: the gateway cannot be reached, or refuses the job.
        AuditError: there are no such containers.
    """
    return asyncio.run(_examine(gateway, options))


@dataclass(frozen=True, slots=True)
class _Victim:
    """The other job, and its user's client; without an id there is no other job."""

    id: str
    client: GatewayClient


async def _examine(gateway: GatewayOptions, options: InsiderOptions) -> Inside:
    access = gateway.access()
    home = None if options.compose is not None else _local_home(gateway)
    cluster = _cluster_access(home, options)
    started_at, started = dt.datetime.now(dt.UTC), time.monotonic()
    nonce = secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-insider-") as directory,
        canaries(nonce, cluster.sites) as put_out,
        _outlets(nonce, cluster) as heard,
    ):
        async with gateway_client(access) as client:
            files = packed(World(), Path(directory))
            async with _another_job(access, home, files, wanted=options.victim) as victim:
                world = World(
                    nonce=nonce,
                    victim=victim.id,
                    home=cluster.shown,
                    targets=(*put_out.targets, *heard.targets, *cluster.targets(victim.id)),
                    canary=put_out.file,
                    bounds=cluster.bounds,
                )
                job_id = await _submit(client, packed(world, Path(directory)))
                job, output = await _follow(client, job_id, options.limit)
                lost = await losses_of(victim.client, victim.id) if victim.id else None
                seen = replace(
                    await leftovers_of(client, job_id, cluster.homes, nonce, put_out), lost=lost, heard=heard.marks
                )
    rows, ended = read_rows(output.splitlines(), nonce)
    cut_short = "" if ended else f"the hostile job {job_id} did not come to its end: {_why(job)}"
    report = report_of(
        f"what a job reaches on {access.url}",
        started_at,
        time.monotonic() - started,
        rows,
        job_id=job_id,
        missing=cut_short or "the job told nothing of it",
        seen=seen,
    )
    return Inside(report, cut_short)


@contextlib.contextmanager
def _outlets(nonce: str, access: ClusterAccess) -> Iterator[Outlets]:
    """Outlets outside that jobs must not reach; none where jobs may connect out, or run on another machine."""
    if not access.enforced:
        yield Outlets(nonce)
        return
    with outlets(nonce) as put_out:
        yield put_out


def _cluster_access(home: Home | None, options: InsiderOptions) -> ClusterAccess:
    if options.compose is not None:
        return ContainerAccess.of(options.compose, options.project)
    return ClusterAccess() if home is None else HomeAccess.of(home, options.config)


def _local_home(gateway: GatewayOptions) -> Home | None:
    """The home, if the examined cluster runs in it: then targets are known from outside."""
    if gateway.server is not None or announced_url(gateway.located_home) is None:
        return None
    return gateway.located_home


async def _submit(client: GatewayClient, files: Packed) -> str:
    submission = build_submission(
        files.pipeline, name=HOSTILE, executors=1, py_files=[files.package], restart={"strategy": "none"}
    )
    return await client.submit(submission.pipeline, submission.request, submission.files)


@contextlib.asynccontextmanager
async def _another_job(
    access: GatewayAccess, home: Home | None, files: Packed, *, wanted: bool
) -> AsyncIterator[_Victim]:
    """Start another job, of another user if this process may create one."""
    with _another_user(access, home if wanted else None) as other:
        async with gateway_client(other) as client:
            if not wanted:
                yield _Victim("", client)
                return
            submission = build_submission(files.victim, name=VICTIM, executors=1, restart={"strategy": "none"})
            job_id = await client.submit(submission.pipeline, submission.request, submission.files)
            try:
                await _stays(client, job_id)
                yield _Victim(job_id, client)
            finally:
                with contextlib.suppress(ClientError):
                    await client.patch(f"/v1/jobs/{job_id}", mode="cancel")
                    await _until_ended(client, job_id, CANCEL_SECONDS)


@contextlib.contextmanager
def _another_user(access: GatewayAccess, home: Home | None) -> Iterator[GatewayAccess]:
    """The access of a user created for this; the same user if that is not possible."""
    from sluice.gateway import AccessRole
    from sluice.gateway.credentials import TokenStore

    if home is None:
        yield access
        return
    store = TokenStore(home)
    try:
        record, token = store.create(VICTIM, AccessRole.SUBMITTER, VICTIM_TOKEN_LIFETIME)
    except (StoreError, OSError):
        yield access
        return
    try:
        yield replace(access, token=token)
    finally:
        store.revoke(record.id)


async def _stays(client: GatewayClient, job_id: str) -> None:
    """Wait until the victim has an executor with a Python worker; the audit goes on without if it takes too long."""
    deadline = time.monotonic() + VICTIM_SECONDS
    reader = PatientReader(client, job_id)
    while time.monotonic() < deadline:
        job = await reader.get(f"/v1/jobs/{job_id}")
        if job["state"] in TERMINAL or (job["progress"]["tasks_running"] and _STAYS in await _output(client, job_id)):
            return
        await asyncio.sleep(POLL_SECONDS)


async def _follow(client: GatewayClient, job_id: str, limit: float) -> tuple[dict[str, Any], str]:
    """Follow the job to its end, or cancel it after ``limit`` seconds; returns its state and output."""
    job = await _until_ended(client, job_id, limit)
    if job["state"] not in TERMINAL:
        await client.patch(f"/v1/jobs/{job_id}", mode="cancel")
        job = await _until_ended(client, job_id, CANCEL_SECONDS)
    return job, await _output(client, job_id)


async def _until_ended(client: GatewayClient, job_id: str, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    reader = PatientReader(client, job_id)
    while True:
        job: dict[str, Any] = await reader.get(f"/v1/jobs/{job_id}")
        if job["state"] in TERMINAL or time.monotonic() > deadline:
            return job
        await asyncio.sleep(POLL_SECONDS)


async def _output(client: GatewayClient, job_id: str) -> str:
    """The beginning of the job's standard output, bounded; empty when there is none yet."""
    pieces: list[str] = []
    length = 0
    with contextlib.suppress(ClientError):
        async for piece in JobLog(PatientReader(client, job_id), job_id, "driver.stdout").pieces():
            pieces.append(piece)
            length += len(piece)
            if length > MAX_OUTPUT_CHARACTERS:
                break
    return "".join(pieces)


def _why(job: dict[str, Any]) -> str:
    failure = job.get("failure") or {}
    return str(failure.get("error") or job["state"])[:300]
