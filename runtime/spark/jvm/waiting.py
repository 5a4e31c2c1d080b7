"""JVMs that wait for a job: their command, and the line of input that assigns them to a job.

A waiting JVM has no identity, and runs only ``io.sluice.warm.WaitingRoom`` of the plugin. Everything specific to the
job follows later: the identity is written to the directory that the command line names, and settings, environment and
main class arrive on standard input.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluice.runtime.spark.errors import SparkError
from sluice.runtime.spark.jvm.command import AGENT_OPTION, Command, JvmProgram, SparkRuntime

WAITING_ROOM = "io.sluice.warm.WaitingRoom"
READY = "ready"
"""A file in the JVM's temporary directory that exists while it waits. The JVM removes it once it has its identity."""
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
    """The command of a waiting JVM.

    Args:
        spark: the installation to start it from.
        options: the options of the later JVM, see :func:`sluice.runtime.spark.jvm.command.jvm_options`.
        env: the part of the environment that is known.
        temp_dir: its temporary directory, in which it creates :data:`READY`.
        argfile: the file for its options.
    """
    return JvmProgram(_waiting_options(options), WAITING_ROOM, (str(temp_dir / READY),)).command(spark, env, argfile)


def _waiting_options(options: tuple[str, ...]) -> tuple[str, ...]:
    agents = [option for option in options if option.startswith(AGENT_OPTION)]
    if len(agents) != 1:
        raise SparkError("a JVM without Sluice's Java agent cannot wait for a job")
    plugin, _, identity = agents[0].rpartition("=")
    return tuple(f"{plugin}=wait:{identity}" if option is agents[0] else option for option in options)


def can_become(waiting: Command, command: Command) -> bool:
    """Whether the JVM of ``waiting`` can take over ``command``: both have the same ``java`` and the same options."""
    return (
        waiting.jvm is not None
        and command.jvm is not None
        and waiting.argv[0] == command.argv[0]
        and waiting.jvm.options == _waiting_options(command.jvm.options)
    )


def job_line(command: Command, more: Mapping[str, str]) -> bytes:
    """The line of input that assigns a waiting JVM to a job. Contains secrets.

    Args:
        command: the command that the JVM takes over.
        more: additional environment variables.

    Raises:
        SparkError: the line is too long, or ``command`` is not that of a JVM.
    """
    if command.jvm is None:
        raise SparkError("a waiting JVM can only take over the command of a JVM")
    jvm = command.jvm
    line = msgspec.json.encode(_Job(jvm.main, jvm.arguments, jvm.properties, {**command.env, **more})) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise SparkError("the settings of the job are too long for a waiting JVM")
    return line
