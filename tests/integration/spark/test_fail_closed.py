"""No Spark process runs without the provider or with an unusable identity.

None talks to an impostor of its driver.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.messages import ExecutorLaunch
from sluice.runtime.node.child_process import ChildProcess
from sluice.runtime.spark.jvm.command import (
    IDENTITY_EXIT_CODE,
    Command,
    SparkRuntime,
    TlsEngine,
    executor_command,
)
from sluice.runtime.spark.jvm.place import JvmPlace
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki
from tests.integration.spark.conftest import Rounds
from tests.integration.spark.small_cluster import HOST, JOB_ID

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ACCEPT = (f"spiffe://{TRUST_DOMAIN}/job/{JOB_ID}/*",)
EXECUTOR = SpiffeId.executor(TRUST_DOMAIN, JOB_ID, 77)
DEADLINE_SECONDS = 60.0


def command_for(spark: SparkRuntime, identity: Path, work: Path, driver_url: str) -> Command:
    launch = ExecutorLaunch(
        job_id=JOB_ID,
        allocation_id="slot-77",
        executor_id=77,
        app_id="app",
        driver_url=driver_url,
        resource_profile_id=0,
        cores=1,
        memory_mb=512,
        startup_conf={},
        java_options=(),
        spark_auth_secret="00" * 32,
        python=sys.executable,
    )
    return executor_command(launch, spark, JvmPlace(identity, work, temp=work, reports=work, host=HOST))


async def run(command: Command, work: Path) -> tuple[int, str]:
    """Run a command to its end; returns its exit code and its output."""
    command.write_files()
    log = work / "log"
    with log.open("wb") as file:
        process = await ChildProcess.start(
            command.argv, env=command.env, cwd=work, stdout=file.fileno(), stderr=file.fileno()
        )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            ended = await process.wait()
    finally:
        await process.stop(0)
    return ended.code, log.read_text(errors="replace")


def missing(identity: Path, _: TestPki) -> None:
    shutil.rmtree(identity)


def no_peers(identity: Path, _: TestPki) -> None:
    (identity / "peers").unlink()


def nobody_accepted(identity: Path, _: TestPki) -> None:
    (identity / "peers").write_text("# nobody\n")


def everybody_accepted(identity: Path, _: TestPki) -> None:
    (identity / "peers").write_text("*\n")


def readable_key(identity: Path, _: TestPki) -> None:
    (identity / "key.pem").chmod(0o640)


def foreign_key(identity: Path, pki: TestPki) -> None:
    (identity / "key.pem").write_bytes((pki.directory(EXECUTOR) / "key.pem").read_bytes())


def expired(identity: Path, pki: TestPki) -> None:
    forged = pki.hostile(Hostile.EXPIRED, pretending=EXECUTOR).directory
    for name in ("key.pem", "chain.pem"):
        (identity / name).write_bytes((forged / name).read_bytes())


def no_spiffe_id(identity: Path, pki: TestPki) -> None:
    forged = pki.hostile(Hostile.NO_SPIFFE_ID, pretending=EXECUTOR).directory
    for name in ("key.pem", "chain.pem"):
        (identity / name).write_bytes((forged / name).read_bytes())


def empty_bundle(identity: Path, _: TestPki) -> None:
    (identity / "ca.pem").write_text("")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param(missing, "NoSuchFile", id="no directory"),
        pytest.param(no_peers, "peers", id="no peers file"),
        pytest.param(nobody_accepted, "accepted peers is empty", id="nobody accepted"),
        pytest.param(everybody_accepted, "not a SPIFFE pattern", id="everybody accepted"),
        pytest.param(readable_key, "others than the owner", id="key that others can read"),
        pytest.param(foreign_key, "not the key of the certificate", id="key of another certificate"),
        pytest.param(expired, "NotAfter", id="expired certificate"),
        pytest.param(no_spiffe_id, "0 URI SANs", id="certificate without SPIFFE ID"),
        pytest.param(empty_bundle, "0 certificates", id="no authorities"),
    ],
)
async def test_process_without_usable_identity_does_not_start(
    spark: SparkRuntime, pki: TestPki, tmp_path: Path, damage: Callable[[Path, TestPki], None], said: str
) -> None:
    identity = pki.directory(EXECUTOR, accept=ACCEPT)
    damage(identity, pki)
    code, log = await run(command_for(spark, identity, tmp_path, f"spark://x@{HOST}:9"), tmp_path)
    assert code == IDENTITY_EXIT_CODE
    assert said in log
    assert "Started daemon" not in log


async def test_an_executor_without_the_provider_cannot_connect(
    rounds: Rounds, spark: SparkRuntime, pki: TestPki, tmp_path: Path
) -> None:
    """Only the agent is missing: stock Spark has no such SSLContext and ends before it sends anything."""
    identity = pki.directory(EXECUTOR, accept=ACCEPT)
    url = rounds.job.master.registrations[-1].driver_url
    command = command_for(spark, identity, tmp_path, url)
    ((path, content),) = command.files.items()
    lines = [line for line in content.splitlines(keepends=True) if b"-javaagent" not in line]
    assert len(lines) == len(content.splitlines()) - 1
    before = rounds.job.master.progress.executors_added
    code, log = await run(Command(command.argv, command.env, {path: b"".join(lines)}), tmp_path)
    assert code not in {0, IDENTITY_EXIT_CODE}
    assert "SluiceTLSv1.3" in log or "keys not found" in log
    assert rounds.job.master.progress.executors_added == before


@pytest.mark.parametrize("engine", list(TlsEngine))
async def test_an_executor_sends_nothing_to_an_impostor_of_its_driver(
    spark: SparkRuntime, pki: TestPki, tmp_path: Path, engine: TlsEngine
) -> None:
    """Without the driver's identity a peer gets a failed handshake and not one byte of Spark's."""
    driver = SpiffeId.driver(TRUST_DOMAIN, JOB_ID)
    impostors = [
        pki.hostile(case, pretending=driver).server_context()
        for case in (Hostile.FOREIGN_CA, Hostile.OTHER_JOB, Hostile.WRONG_ROLE, Hostile.EXPIRED, Hostile.WRONG_EKU)
    ]
    heard: list[bytes] = []
    failures: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # In TLS 1.3 a server without client authentication is done before the client has judged it.
        try:
            await writer.start_tls(impostors[len(failures) % len(impostors)])
            heard.append(await reader.read(1))
        except (ssl.SSLError, ConnectionError) as error:
            failures.append(str(error))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    identity = pki.directory(EXECUTOR, accept=ACCEPT)
    code, log = await run(
        command_for(replace(spark, engine=engine), identity, tmp_path, f"spark://CoarseGrainedScheduler@{HOST}:{port}"),
        tmp_path,
    )
    server.close()
    assert code not in {0, IDENTITY_EXIT_CODE}
    assert [data for data in heard if data] == []
    assert failures
    assert "SSLHandshakeException" in log or "not accepted here" in log
