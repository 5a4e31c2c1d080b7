"""The command lines of Spark's JVMs: complete, without secrets, and with nothing of the job's in them."""

from __future__ import annotations

import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sluice.runtime.messages import ExecutorLaunch
from sluice.runtime.spark.errors import ForbiddenSparkConf
from sluice.runtime.spark.java import Java, SparkDistribution, find_java
from sluice.runtime.spark.jvm.command import (
    SERIAL_GC_BELOW_MB,
    Command,
    SparkRuntime,
    TlsEngine,
    driver_jvm_command,
    engine_for,
    executor_command,
)
from sluice.runtime.spark.jvm.options import MODULE_OPTIONS, VECTOR_MODULE_OPTION
from sluice.runtime.spark.jvm.place import JvmPlace

SECRET = "5ec2e7" * 8
SPARK = SparkRuntime(
    Java(Path("/opt/java/bin/java"), 17),
    SparkDistribution(Path("/opt/spark"), "4.3.0", (Path("/opt/spark/jars/a.jar"), Path("/opt/spark/jars/b.jar"))),
    Path("/cache/plugin.jar"),
    TlsEngine.JDK,
)
LAUNCH = ExecutorLaunch(
    job_id="0" * 32, allocation_id="a", executor_id=4, app_id="app-1", driver_url="spark://x@127.0.0.1:1",
    resource_profile_id=0, cores=2, memory_mb=768, startup_conf={"spark.rpc.askTimeout": "5s"},
    java_options=MODULE_OPTIONS, spark_auth_secret=SECRET, python="/usr/bin/python3",
)  # fmt: skip


def place_in(work: Path) -> JvmPlace:
    return JvmPlace(Path("/identity"), work, Path("/t"), Path("/r"), "10.0.0.1")


def executor(launch: ExecutorLaunch = LAUNCH, spark: SparkRuntime = SPARK, work: Path = Path("/work")) -> Command:
    return executor_command(launch, spark, place_in(work))


def driver(conf: dict[str, str], work: Path = Path("/work")) -> Command:
    return driver_jvm_command(
        conf, SPARK, place_in(work),
        memory_mb=512, bridge=Path("/t/bridge"), connection_info=Path("/t/gateway"), job_id="0" * 32, attempt=2,
    )  # fmt: skip


def options(command: Command) -> list[str]:
    ((_, content),) = command.files.items()
    return [line.strip('"') for line in content.decode().splitlines()]


def test_executor_carries_the_agent_and_our_security_settings() -> None:
    lines = options(executor())
    assert "-javaagent:/cache/plugin.jar=/identity" in lines
    assert "-Dspark.ssl.rpc.enabled=true" in lines
    assert "-Dspark.ssl.rpc.protocol=SluiceTLSv1.3" in lines
    assert "-Dspark.authenticate=true" in lines
    assert "-Dspark.rpc.askTimeout=5s" in lines
    assert "-Xmx768m" in lines
    assert lines[-2:] == ["-cp", "/opt/spark/jars/a.jar:/opt/spark/jars/b.jar"]


def test_the_executor_command_has_tolerant_class_archive_options_only_with_an_archive() -> None:
    with_archive = replace(SPARK, class_archive=Path("/cache/classes.jsa"))
    lines = options(executor(spark=with_archive))
    assert "-XX:SharedArchiveFile=/cache/classes.jsa" in lines
    assert "-Xshare:auto" in lines
    assert any("/work/classes.log" in line for line in lines)
    assert not any("share" in line.lower() for line in options(executor()))


def test_java_25_is_given_its_aot_cache() -> None:
    lines = options(executor(spark=replace(SPARK, class_archive=Path("/cache/classes.aot"))))
    assert "-XX:AOTCache=/cache/classes.aot" in lines
    assert "-XX:AOTMode=auto" in lines
    assert "-XX:Tier4InvocationThreshold=100000" in lines
    assert lines.index("-XX:-AOTReplayTraining") > lines.index("-XX:+UnlockDiagnosticVMOptions")
    assert not any("share" in line.lower() for line in lines)


@pytest.mark.parametrize(
    ("major", "vector_api", "has_module"), [(17, False, True), (25, False, False), (25, True, True)]
)
def test_the_vector_api_module_is_enabled_unless_it_prevents_the_aot_cache(
    major: int, vector_api: bool, has_module: bool
) -> None:
    spark = replace(SPARK, java=replace(SPARK.java, major=major), vector_api=vector_api)
    assert (VECTOR_MODULE_OPTION in options(executor(spark=spark))) is has_module
    assert spark.may_use_archive is not (major == 25 and vector_api)


def test_the_vector_api_module_is_accepted_among_the_executor_java_options() -> None:
    launch = msgspec.structs.replace(LAUNCH, java_options=(*MODULE_OPTIONS, VECTOR_MODULE_OPTION))
    assert VECTOR_MODULE_OPTION in options(executor(launch=launch))


def test_c2_thresholds_are_unchanged_without_an_aot_cache() -> None:
    for archive in (None, Path("/cache/classes.jsa")):
        assert not any("Tier4" in line for line in options(executor(spark=replace(SPARK, class_archive=archive))))


def test_the_executor_command_has_the_executor_arguments() -> None:
    argv = executor().argv
    assert argv[:2] == ("/opt/java/bin/java", "@/work/executor.args")
    pairs = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert pairs["--executor-id"] == "4"
    assert pairs["--bind-address"] == pairs["--hostname"] == "10.0.0.1"
    assert pairs["--cores"] == "2"


def test_secret_is_in_the_environment_only() -> None:
    for command in (executor(), driver({"spark.authenticate.secret": SECRET})):
        assert SECRET not in " ".join(command.argv)
        assert command.env["_SPARK_AUTH_SECRET"] == SECRET
        assert all(SECRET.encode() not in content for content in command.files.values())
        assert SECRET not in repr(command)
    assert SECRET not in repr(LAUNCH)
    assert "_SPARK_AUTH_SECRET" not in driver({}).env


def test_environment_is_complete_and_nothing_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-javaagent:evil.jar")
    for command in (executor(), driver({})):
        assert "JAVA_TOOL_OPTIONS" not in command.env
        assert command.env["SPARK_LOCAL_IP"] == "10.0.0.1"
        assert command.env["TMPDIR"] == "/t"


@pytest.mark.parametrize(
    "option", ["-javaagent:evil.jar", "-agentlib:jdwp=transport=dt_socket", "-XX:OnOutOfMemoryError=sh", "-Xmx9g", "@f"]
)
def test_jvm_option_of_the_driver_is_refused(option: str) -> None:
    launch = msgspec.structs.replace(LAUNCH, java_options=(*MODULE_OPTIONS, option))
    with pytest.raises(ForbiddenSparkConf):
        executor(launch)


def test_startup_setting_of_the_driver_is_vetted() -> None:
    launch = msgspec.structs.replace(LAUNCH, startup_conf={"spark.ssl.rpc.enabled": "false"})
    with pytest.raises(ForbiddenSparkConf, match=r"spark\.ssl\.rpc\.enabled"):
        executor(launch)


def test_small_heaps_are_collected_by_one_thread() -> None:
    assert "-XX:+UseSerialGC" in options(executor())
    large = msgspec.structs.replace(LAUNCH, memory_mb=SERIAL_GC_BELOW_MB)
    assert "-XX:+UseSerialGC" not in options(executor(large))


def test_the_tls_engine_is_passed_to_the_jvm() -> None:
    spark = replace(SPARK, engine=TlsEngine.OPENSSL)
    assert "-Dsluice.tls.engine=openssl" in options(executor(spark=spark))


NATIVE = [Path("netty-tcnative-boringssl-static-2.0.76.Final-linux-x86_64.jar")]


@pytest.mark.parametrize(
    ("system", "machine", "libc", "jars", "engine"),
    [
        pytest.param("Linux", "x86_64", "glibc", NATIVE, TlsEngine.OPENSSL, id="library is there"),
        pytest.param("Linux", "x86_64", "", NATIVE, TlsEngine.JDK, id="musl"),
        pytest.param("Linux", "aarch64", "glibc", NATIVE, TlsEngine.JDK, id="other machine"),
        pytest.param("Linux", "riscv64", "glibc", NATIVE, TlsEngine.JDK, id="unknown machine"),
        pytest.param("Linux", "x86_64", "glibc", [], TlsEngine.JDK, id="no library"),
    ],
)
def test_the_tls_engine_is_chosen_by_platform_and_available_jars(
    system: str, machine: str, libc: str, jars: list[Path], engine: TlsEngine
) -> None:
    assert engine_for(system, machine, libc, jars) is engine


def test_files_are_written_for_the_owner_alone(tmp_path: Path) -> None:
    command = driver({"spark.authenticate.secret": SECRET}, tmp_path)
    command.write_files()
    assert stat.S_IMODE((tmp_path / "driver-jvm.args").stat().st_mode) == 0o600


def test_special_characters_in_the_argument_file_survive_a_real_java(tmp_path: Path) -> None:
    """Spaces, quotes, backslashes and the special characters of Java's argument files, with a real java."""
    value = 'a "quoted" \\ back\\slash # no comment @no-file \\n'
    java = find_java()
    spark = replace(SPARK, java=java)
    command = driver_jvm_command(
        {"spark.app.name": value}, spark, JvmPlace(tmp_path, tmp_path, tmp_path, tmp_path, "127.0.0.1"),
        memory_mb=64, bridge=tmp_path, connection_info=tmp_path,
        job_id="0" * 32, attempt=1,
    )  # fmt: skip
    ((path, content),) = command.files.items()
    path.write_bytes(b"".join(line for line in content.splitlines(keepends=True) if b"-javaagent" not in line))
    run = subprocess.run(
        [command.argv[0], command.argv[1], "-XshowSettings:properties", "-version"],
        capture_output=True, text=True, timeout=60, check=True, env={},
    )  # fmt: skip
    assert f"spark.app.name = {value}\n" in run.stdout + run.stderr
