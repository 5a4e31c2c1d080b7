"""A cluster with a standby JobManager, and the bundled streaming pipeline on it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.cli.errors import AwayError
from tests.integration.cluster.conftest import REPOSITORY, LocalCluster, eventually, start_cluster
from tests.processes import command_line
from tests.system.streaming.certificates import Incoming, in_database, in_files

PIPELINE = REPOSITORY / "pipelines" / "cert_stream.py"
PATIENCE_SECONDS = 300
"""A wait has the start of Spark in it, and where a leader was killed its lease of 20 s."""


@dataclass
class Stream:
    """The pipeline, its input and its outputs."""

    cluster: LocalCluster
    incoming: Incoming
    output: Path
    database: Path
    job_id: str = ""

    def submit(self, *options: str) -> str:
        """Submit the pipeline as a job; returns its id."""
        done = self.cluster.sluice(
            "submit",
            str(PIPELINE),
            "--executors",
            "1",
            *options,
            "--",
            *("--input", str(self.incoming.directory), "--output", str(self.output)),
            *("--database", str(self.database), "--interval", "0.2", "--files-per-batch", "3"),
        )
        assert done.returncode == 0, done.stderr
        self.job_id = done.stdout.strip()
        return self.job_id

    @property
    def checkpoints(self) -> Any:
        """What the job shows of its checkpoints."""
        return self.cluster.get(f"/v1/jobs/{self.job_id}/checkpoints")

    def until_committed(self, seen: int) -> None:
        """Wait until a batch after the first ``seen`` is committed.

        Nobody answers between two leaders; that is tolerated.
        """

        def committed() -> bool:
            try:
                return bool(self.checkpoints["completed"] > seen)
            except AwayError:
                return False

        eventually(committed, f"a batch after the first {seen} is committed", PATIENCE_SECONDS)

    def until_all_is_there(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until all input is in both outputs, and check that it is there exactly once."""
        expected = self.incoming.fingerprints

        def complete() -> bool:
            return expected <= set(in_files(self.output)) and expected <= set(in_database(self.database))

        eventually(complete, "all certificates are in both outputs", seconds)
        self.check()

    def check(self) -> None:
        """Check that no certificate is lost and none is there twice."""
        expected = sorted(self.incoming.fingerprints)
        assert sorted(in_files(self.output)) == expected
        assert sorted(in_database(self.database)) == expected

    def let_others_write(self) -> None:
        """Make the outputs writable for whichever job continues with them."""
        for path in (self.database, self.output, *self.output.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)

    def kill(self, *words: str) -> None:
        """``kill -9`` the process of the cluster whose command line has all these words; it must exist."""
        assert self.kill_if_there(*words), words

    def kill_if_there(self, *words: str) -> bool:
        """Like :meth:`kill`, but returns whether there was such a process."""
        victims = [each for each in self.cluster.processes() if _matches(each, words)]
        for victim in victims[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
        return bool(victims)


def _matches(process: psutil.Process, words: Sequence[str]) -> bool:
    line = command_line(process)
    return all(any(argument.endswith(word) for argument in line) for word in words)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    """The pipeline and its cluster; nothing is submitted yet."""
    cluster = start_cluster(tmp_path / "home", "--taskmanagers", "1", "--jobmanagers", "2")
    try:
        yield Stream(
            cluster,
            Incoming(cluster.shared / "incoming"),
            cluster.shared / "certificates",
            cluster.shared / "expiry.db",
        )
    finally:
        cluster.sluice("down")
