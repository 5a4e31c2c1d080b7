"""A waiting JVM that gets a job is no different from a JVM that was started for the job."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]

from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.spark.jvm import (
    READY,
    Command,
    JvmProgram,
    SparkRuntime,
    job_line,
    jvm_environment,
    jvm_options,
    waiting_command,
)
from sluice.runtime.spark.jvm.place import JvmPlace
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.spark.small_cluster import HOST, JOB_ID

pytestmark = pytest.mark.spark

EXECUTOR = SpiffeId.executor(TRUST_DOMAIN, JOB_ID, 5)
READY_SECONDS = 120.0
SETTINGS = {"spark.app.name": "the job", "spark.authenticate": "true", "spark.hadoop.asked.by": "the job"}
NATIVE = "liblz4-java-"
"""Native code that is kept in a file from its first use on."""
ANY_TIME = ("Common-Cleaner", "Cleaner-", "process reaper", "ForkJoinPool", "StatisticsDataReferenceCleaner")
"""Threads of the JDK and of Hadoop that come with the first use and know nobody."""


@dataclass
class Place:
    """The directories of one JVM."""

    top: Path

    def __post_init__(self) -> None:
        for path in (self.work, self.temp, self.reports):
            path.mkdir(mode=0o700, parents=True)

    @property
    def work(self) -> Path:
        return self.top / "work"

    @property
    def temp(self) -> Path:
        return self.top / "t"

    @property
    def reports(self) -> Path:
        return self.top / "reports"

    @property
    def identity(self) -> Path:
        return self.top / "identity"

    def options(self, spark: SparkRuntime) -> tuple[str, ...]:
        return jvm_options(spark, JvmPlace(self.identity, self.work, self.temp, self.reports, HOST, {}), 512)

    def command(self, spark: SparkRuntime) -> Command:
        """A command that runs a Py4J gateway, through which a test looks into the JVM."""
        main = ("--enable-auth", "--die-on-broken-pipe", "0")
        program = JvmProgram(self.options(spark), "py4j.GatewayServer", main, SETTINGS)
        env = {**jvm_environment(spark, self.work, self.temp, HOST), "SLUICE_JOB_ID": JOB_ID}
        return program.command(spark, env, self.work / "args")


@contextlib.contextmanager
def running(command: Command, place: Place, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    command.write_files()
    with (place.top / "err").open("wb") as err:
        process = subprocess.Popen(
            command.argv,
            env=dict(env or command.env),
            cwd=place.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def waiting(spark: SparkRuntime, place: Place) -> Iterator[subprocess.Popen[bytes]]:
    env = jvm_environment(spark, place.work, place.temp, HOST)
    command = waiting_command(spark, place.options(spark), env, temp_dir=place.temp, argfile=place.work / "waiting")
    with running(command, place) as process:
        deadline = time.monotonic() + READY_SECONDS
        while not (place.temp / READY).exists():
            assert process.poll() is None, (place.top / "err").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process


@contextlib.contextmanager
def looked_into(process: subprocess.Popen[bytes]) -> Iterator[Any]:
    assert process.stdout is not None
    port, token = process.stdout.readline().decode().strip(), process.stdout.readline().decode().strip()
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=int(port), auth_token=token, enable_memory_management=False)
    )
    try:
        yield gateway.jvm
    finally:
        gateway.close()


def kept(jvm: Any, of: str, name: str) -> Any:
    """The value of a static field, read by reflection.

    Py4J cannot list the methods of all classes: some of them name classes that are missing.
    """
    field = jvm.java.lang.Class.forName(of).getDeclaredField(name)
    field.setAccessible(True)
    return field.get(None)


def seen(jvm: Any, process: subprocess.Popen[bytes], place: Place) -> dict[str, Any]:
    """What a job could see of the time before it."""
    properties = dict(jvm.System.getProperties())
    threads = {thread.getName() for thread in jvm.Thread.getAllStackTraces().keySet()}
    known = jvm.org.apache.hadoop.security.UserGroupInformation
    user = known.getCurrentUser()
    session, api = jvm.org.apache.spark.sql.classic.SparkSession, jvm.org.apache.spark.sql.SparkSession
    return {
        "properties": {key: str(value).replace(str(place.top), "") for key, value in properties.items()},
        "environment": {
            key: str(value).replace(str(place.top), "") for key, value in dict(jvm.System.getenv()).items()
        },
        "threads": {re.sub(r"\d+", "N", each) for each in threads if not any(word in each for word in ANY_TIME)},
        "keys": [str(key) for key in user.getCredentials().getAllSecretKeys()],
        "tokens": user.getCredentials().numberOfTokens(),
        "env": kept(jvm, "org.apache.spark.SparkEnv$", "env"),
        "active": str(session.getActiveSession()),
        "default": str(session.getDefaultSession()),
        "sessions": [str(each) for each in (api.getActiveSession(), api.getDefaultSession())],
        "hadoop": jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf().get("asked.by"),
        "level": str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel()),
        "launcher": str(jvm.io.sluice.tls.Agent.launcherSettings()),
        "providers": [each.getName() for each in jvm.java.security.Security.getProviders()],
        "files": [path.name for path in place.temp.rglob("*") if not path.name.startswith(NATIVE)],
        "listening": sum(each.status == psutil.CONN_LISTEN for each in psutil.Process(process.pid).net_connections()),
    }


def test_a_waiting_jvm_that_got_a_job_equals_one_started_for_the_job(
    spark: SparkRuntime, pki: TestPki, tmp_path: Path
) -> None:
    cold_place, warm_place = Place(tmp_path / "c"), Place(tmp_path / "w")
    accept = (f"spiffe://{TRUST_DOMAIN}/job/{JOB_ID}/*",)
    pki.directory(EXECUTOR, accept=accept).rename(cold_place.identity)
    with running(cold_place.command(spark), cold_place) as process, looked_into(process) as jvm:
        cold = seen(jvm, process, cold_place)
    with waiting(spark, warm_place) as process:
        kinds = {each.type for each in psutil.Process(process.pid).net_connections(kind="inet")}
        assert not kinds  # no socket of any kind, after a whole Spark has run
        assert not any(path.name.startswith("hsperf") for path in warm_place.temp.iterdir())
        assert process.stdin is not None
        pki.directory(EXECUTOR, accept=accept).rename(warm_place.identity)
        process.stdin.write(job_line(warm_place.command(spark), {}))
        process.stdin.flush()
        with looked_into(process) as jvm:
            warm = seen(jvm, process, warm_place)
    assert warm.pop("threads") <= cold["threads"]
    del cold["threads"]
    assert "sun.java.command" in cold["properties"]
    for each in (cold, warm):
        del each["properties"]["sun.java.command"]  # what was started first
    assert warm == cold


def test_a_waiting_jvm_without_a_job_exits_when_its_input_closes(spark: SparkRuntime, tmp_path: Path) -> None:
    with waiting(spark, Place(tmp_path / "w")) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_waiting_jvm_halts_when_its_job_has_no_identity(spark: SparkRuntime, tmp_path: Path) -> None:
    place = Place(tmp_path / "w")
    with waiting(spark, place) as process:
        assert process.stdin is not None
        process.stdin.write(job_line(place.command(spark), {}))
        process.stdin.flush()
        assert process.wait(30) == 97
    assert "cannot be given its identity" in (place.top / "err").read_text()
