"""Who is killed, and when: drawn from a seed before anything runs, so that a seed is the same story every time."""

from __future__ import annotations

import contextlib
import enum
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from cli.errors import AwayError
from tests.integration.cluster.conftest import LocalCluster, eventually

DEADLINE_SECONDS = 120.0


class Kind(enum.StrEnum):
    """The processes of a cluster and of a job."""

    LEADER = "leader"
    STANDBY = "standby"
    TASKMANAGER = "taskmanager"
    SHUFFLE_MANAGER = "shuffle-manager"
    SHUFFLE_WORKER = "shuffle-worker"
    DRIVER_AGENT = "driver-agent"
    DRIVER_JVM = "driver-jvm"
    DRIVER_PYTHON = "driver-python"
    EXECUTOR_JVM = "executor-jvm"
    AUTHORITY = "authority"
    GATEWAY = "gateway"


# What a process of each kind has in its command line, at the end of one argument each.
_WORDS = {
    Kind.TASKMANAGER: ("run", "taskmanager"),
    Kind.SHUFFLE_MANAGER: ("run", "shuffle-manager"),
    Kind.SHUFFLE_WORKER: ("run", "shuffle-worker"),
    Kind.DRIVER_AGENT: ("runtime.spark.driver_main",),
    Kind.DRIVER_JVM: ("org.apache.spark.api.python.PythonGatewayServer",),
    Kind.EXECUTOR_JVM: ("org.apache.spark.executor.CoarseGrainedExecutorBackend",),
    Kind.AUTHORITY: ("run", "ca"),
    Kind.GATEWAY: ("run", "envoy"),
}


@dataclass(frozen=True, slots=True)
class Death:
    """Kill one of ``kind`` when the job went on for ``after`` seconds; ``choice`` says which one of several."""

    kind: Kind
    after: float
    choice: float


def story(seed: int, deaths: int, *, shuffle: bool) -> tuple[Death, ...]:
    """The deaths of one run: each kind comes once before one comes twice."""
    chance = random.Random(seed)  # noqa: S311  # a seed is the point
    kinds = [each for each in Kind if shuffle or each not in {Kind.SHUFFLE_MANAGER, Kind.SHUFFLE_WORKER}]
    order: list[Kind] = []
    while len(order) < deaths:
        order += chance.sample(kinds, len(kinds))
    return tuple(Death(kind, chance.uniform(0.2, 4.0), chance.random()) for kind in order[:deaths])


@dataclass(frozen=True, slots=True)
class Killer:
    """Kills processes of a cluster; ``script`` is the file name of the pipeline."""

    cluster: LocalCluster
    script: str

    @property
    def shuffle(self) -> bool:
        """Whether the cluster has a shuffle service."""
        return bool(self._with(_WORDS[Kind.SHUFFLE_WORKER]))

    def kill(self, death: Death) -> int:
        """``kill -9`` one of the kind, when there is one; its process id."""

        def killed() -> int:
            found = sorted(self._of(death.kind), key=lambda each: each.pid)
            if not found:
                return 0
            victim = found[int(death.choice * len(found))].pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                return victim
            return 0

        return eventually(killed, f"there is a {death.kind} to kill", DEADLINE_SECONDS)

    def _of(self, kind: Kind) -> list[psutil.Process]:
        if kind in {Kind.LEADER, Kind.STANDBY}:
            leader = self._leader()
            masters = self._with(("run", "jobmanager"))
            return [each for each in masters if leader and (_has(each, (leader,)) is (kind is Kind.LEADER))]
        if kind is Kind.DRIVER_PYTHON:
            return [each for each in self._with((self.script,)) if not _has(each, ("submit",))]
        return self._with(_WORDS[kind])

    def _leader(self) -> str:
        """The name of the JobManager that leads; empty while nobody says."""
        with contextlib.suppress(AwayError, OSError):
            return str(self.cluster.get("/v1/overview")["jobmanager"].rsplit("/", 1)[1])
        return ""

    def _with(self, words: Sequence[str]) -> list[psutil.Process]:
        return [each for each in self.cluster.processes() if _has(each, words)]


def _has(process: psutil.Process, words: Sequence[str]) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    return all(any(argument.endswith(word) for argument in line) for word in words)


def patiently(ask: Callable[[], Any]) -> Callable[[], Any]:
    """``ask``, with nothing for an answer while nobody leads or the gateway is away."""

    def asked() -> Any:
        with contextlib.suppress(AwayError, OSError):
            return ask()
        return None

    return asked


def live_on(seconds: float) -> None:
    """Let the job go on for so long."""
    threading.Event().wait(seconds)
