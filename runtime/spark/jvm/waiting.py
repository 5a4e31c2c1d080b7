"""JVMs that wait for a job: how they are started, and the one line that tells them what they become.

A JVM that waits has no identity, and runs nothing but ``io.sluice.warm.WaitingRoom`` of the plugin. Everything of the
job comes later: the identity into the directory that its command line names, settings, environment and main class over
its standard input.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluice.runtime.spark.errors import SparkError
from sluice.runtime.spark.jvm.command import AGENT_OPTION, Command, JvmProgram, SparkRuntime

WAITING_ROOM = "io.sluice.warm.WaitingRoom"
READY = "ready"
"""The file that says that a JVM waits, in its temporary directory; it removes it when it has its identity."""
MAX_LINE_BYTES = 8 << 20
"""``MaxLineBytes`` in ``WaitingRoom.scala``."""


class _Job(msgspec.Struct, frozen=True):
    main: str
    arguments: tuple[str, ...]
    properties: Mapping[str, str]
    environment: Mapping[str, str]


def waiting_command(
    spark: SparkRuntime, options: tuple[str, ...], env: Mapping[str, str], *, temp_dir: Path, argfile: Path
) -> Command:
    """The command of a JVM that waits.

    Args:
        spark: what it is started from.
        options: those of the JVM that it becomes, see :func:`sluice.runtime.spark.jvm.command.jvm_options`.
        env: the part of the environment that is known.
        temp_dir: its temporary directory, in which :data:`READY` appears.
        argfile: where its options go.
    """
    return JvmProgram(_waiting(options), WAITING_ROOM, (str(temp_dir / READY),)).command(spark, env, argfile)


def _waiting(options: tuple[str, ...]) -> tuple[str, ...]:
    agents = [option for option in options if option.startswith(AGENT_OPTION)]
    if len(agents) != 1:
        raise SparkError("a JVM without our agent cannot wait for a job")
    plugin, _, identity = agents[0].rpartition("=")
    return tuple(f"{plugin}=wait:{identity}" if option is agents[0] else option for option in options)


def can_become(waiting: Command, command: Command) -> bool:
    """Whether the JVM of ``waiting`` differs from that of ``command`` in nothing but what it is told later."""
    return (
        waiting.jvm is not None
        and command.jvm is not None
        and waiting.argv[0] == command.argv[0]
        and waiting.jvm.options == _waiting(command.jvm.options)
    )


def job_line(command: Command, more: Mapping[str, str]) -> bytes:
    """What a JVM that waits is told; holds secrets.

    Args:
        command: that of the JVM that it becomes.
        more: environment besides.

    Raises:
        SparkError: it is too long.
    """
    if command.jvm is None:
        raise SparkError("only a JVM can be what a waiting JVM becomes")
    jvm = command.jvm
    line = msgspec.json.encode(_Job(jvm.main, jvm.arguments, jvm.properties, {**command.env, **more})) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise SparkError("the settings of the job are too long for a JVM that waits")
    return line
