"""How a warm JVM is started, and what it is told later."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sluice.runtime.spark import SparkError
from sluice.runtime.spark.java import Java, SparkDistribution
from sluice.runtime.spark.jvm import JvmProgram, SparkRuntime, TlsEngine, can_become, job_line, waiting_command
from sluice.runtime.spark.jvm.waiting import WAITING_ROOM

OPTIONS = ("-Xmx768m", "-javaagent:/plugin.jar=/identity")


@pytest.fixture
def spark() -> SparkRuntime:
    java = Java(Path("/usr/bin/java"), 17, "17")
    return SparkRuntime(java, SparkDistribution(Path("/spark"), "4.3.0", ()), Path("/plugin.jar"), TlsEngine.JDK)


def test_the_waiting_command_runs_the_waiting_room_without_an_identity(spark: SparkRuntime) -> None:
    command = waiting_command(spark, OPTIONS, {"HOME": "/w"}, temp_dir=Path("/t"), argfile=Path("/w/args"))
    assert command.argv == ("/usr/bin/java", "@/w/args", WAITING_ROOM, "/t/ready")
    assert b"-javaagent:/plugin.jar=wait:/identity" in command.files[Path("/w/args")]


def test_a_waiting_jvm_can_become_only_a_program_with_the_same_options(spark: SparkRuntime) -> None:
    waiting = waiting_command(spark, OPTIONS, {}, temp_dir=Path("/t"), argfile=Path("/w/args"))

    def becomes(*options: str) -> bool:
        return can_become(waiting, JvmProgram(options, "Main").command(spark, {}, Path("/w/args")))

    assert becomes(*OPTIONS)
    assert not becomes("-Xmx1024m", OPTIONS[1])
    assert not becomes(OPTIONS[0], "-javaagent:/plugin.jar=/another")
    assert not becomes(OPTIONS[0], "-javaagent:/other.jar=/identity")
    assert not becomes(*OPTIONS, "-Dmore=1")


def test_a_jvm_without_our_agent_cannot_wait(spark: SparkRuntime) -> None:
    with pytest.raises(SparkError, match="without Sluice's Java agent"):
        waiting_command(spark, ("-Xmx768m",), {}, temp_dir=Path("/t"), argfile=Path("/w/args"))


def test_the_job_line_holds_the_whole_command_in_one_line(spark: SparkRuntime) -> None:
    program = JvmProgram(OPTIONS, "Main", ("--cores", "1"), {"spark.a": "two\nlines"})
    line = job_line(program.command(spark, {"HOME": "/w"}, Path("/w/args")), {"MORE": "1"})
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line) == {
        "main": "Main",
        "arguments": ["--cores", "1"],
        "properties": {"spark.a": "two\nlines"},
        "environment": {"HOME": "/w", "MORE": "1"},
    }
