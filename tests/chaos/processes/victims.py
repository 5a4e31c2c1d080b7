"""Finds processes of a cluster on one machine, and kills them with SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sluice.cli.errors import AwayError, UnreachableError
from tests.chaos.processes.story import Death, Kind
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.processes import command_line

DEADLINE_SECONDS = 240.0
OPTIONS = ("--taskmanagers", "2", "--jobmanagers", "2")
"""Of `sluice up`."""

# What a process of each kind has in its command line, at the end of one argument each.
WORDS = {
    Kind.TASKMANAGER: ("run", "taskmanager"),
    Kind.SHUFFLE_MANAGER: ("run", "shuffle-manager"),
    Kind.SHUFFLE_WORKER: ("run", "shuffle-worker"),
    Kind.DRIVER_AGENT: ("sluice.runtime.spark.driver.main",),
    Kind.DRIVER_JVM: ("org.apache.spark.api.python.PythonGatewayServer",),
    Kind.EXECUTOR_JVM: ("org.apache.spark.executor.CoarseGrainedExecutorBackend",),
    Kind.EXECUTOR_PYTHON: ("pyspark.daemon",),
    Kind.AUTHORITY: ("run", "ca"),
    Kind.AUTH: ("run", "auth"),
    Kind.CONNECT: ("run", "connect"),
    Kind.GATEWAY: ("run", "envoy"),
    Kind.ENVOY: ("envoy", "--disable-hot-restart"),
}


@dataclass(frozen=True, slots=True)
class Killer:
    """Kills processes of a cluster; ``script`` is the file name of the pipeline."""

    cluster: LocalCluster
    script: str

    def kill(self, death: Death) -> int:
        """Wait for a process of this kind, and kill it with ``kill -9``; returns its process id."""

        def killed() -> int:
            found = sorted(self._of(death.kind), key=lambda each: each.pid)
            if not found:
                return 0
            victim = found[int(death.choice * len(found))].pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                return victim
            return 0

        if death.kind is Kind.LAUNCHER:
            return self._kill_all()
        return eventually(killed, f"there is a {death.kind} to kill", DEADLINE_SECONDS)

    def _kill_all(self) -> int:
        """Kill `sluice up`, check that all processes end with it, and start it again; returns its process id."""
        launcher, *others = self.cluster.processes()
        launcher.kill()
        _, alive = psutil.wait_procs([launcher, *others], timeout=DEADLINE_SECONDS)
        assert not alive, f"these outlive the launcher: {[command_line(each) for each in alive]}"
        start_cluster(self.cluster.home, *OPTIONS)
        return launcher.pid

    def _of(self, kind: Kind) -> list[psutil.Process]:
        if kind in {Kind.LEADER, Kind.STANDBY}:
            leader = patiently(self._leader)()
            masters = self._with(("run", "jobmanager"))
            return [each for each in masters if leader and (has_words(each, (leader,)) is (kind is Kind.LEADER))]
        if kind is Kind.DRIVER_PYTHON:
            return [each for each in self._with((self.script,)) if not has_words(each, ("submit",))]
        found = self._with(WORDS[kind])
        return [each for each in found if _has_job(each)] if kind is Kind.DRIVER_AGENT else found

    def _leader(self) -> str:
        """Return the name of the leading JobManager."""
        return str(self.cluster.get("/v1/overview")["jobmanager"].rsplit("/", 1)[1])

    def _with(self, words: Sequence[str]) -> list[psutil.Process]:
        return [each for each in self.cluster.processes() if has_words(each, words)]


def has_words(process: psutil.Process, words: Sequence[str]) -> bool:
    """Return whether, for each of ``words``, some argument of the process ends with it."""
    line = command_line(process)
    return all(any(argument.endswith(word) for argument in line) for word in words)


def _has_job(agent: psutil.Process) -> bool:
    """Return whether a driver agent runs a driver. The spare agent runs in a different directory."""
    with contextlib.suppress(psutil.Error):
        return "jobs" in Path(agent.cwd()).parts
    return False


def patiently(ask: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap ``ask`` to return None while there is no leader or the gateway is unavailable."""

    def asked() -> Any:
        try:
            return ask()
        except (AwayError, OSError):
            return None
        except UnreachableError as error:  # a credential that is not accepted is no matter of patience
            if not error.what.startswith("no cluster is running"):
                raise
            return None

    return asked


def live_on(seconds: float) -> None:
    """Let the job run for this long."""
    threading.Event().wait(seconds)
