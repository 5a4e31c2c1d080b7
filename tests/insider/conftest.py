"""Clusters for the insider audit: run as the user of the tests, or as a user without privileges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ordinary_user import NOBODY, ROOT, python_of_nobody

SECONDS = 900
"""Of the longest command: the audit, on a machine that is busy with other tests."""


@dataclass(frozen=True)
class AuditedCluster:
    """A cluster's home, and the Python that runs ``sluice`` there as the cluster's user."""

    home: Path
    python: tuple[str, ...]
    environment: dict[str, str]

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``sluice ARGUMENTS`` with this home."""
        return subprocess.run(
            [*self.python, "-P", "-m", "sluice.cli.main", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def start(self, level: str) -> None:
        """Start the cluster with this isolation level, and create a submitter's token."""
        (self.home / "sluice.toml").write_text(f'[isolation]\nlevel = "{level}"\n', encoding="ascii")
        for arguments in (
            ("up", "--detach", "--port", "0"),
            ("token", "create", "eve", "--role", "submitter", "--output", str(self.home / "token")),
        ):
            done = self.sluice(*arguments)
            assert done.returncode == 0, done.stderr

    def audit(self, *arguments: str) -> tuple[int, Any]:
        """Run the insider audit; returns its exit code and its report."""
        done = self.sluice("audit", "--insider", "--format", "json", *arguments)
        assert done.returncode in {0, 1}, done.stderr
        return done.returncode, json.loads(done.stdout)


StartCluster = Callable[..., AuditedCluster]


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """Start clusters with an isolation level, as an unprivileged user on request.

    All of them are stopped at the end of the test.
    """
    started: list[AuditedCluster] = []
    made: list[Path] = []

    def start(level: str, *, ordinary: bool = False) -> AuditedCluster:
        # Not pytest's own directory, which is closed to other users.
        user = Path(tempfile.mkdtemp(prefix="insider-"))
        made.append(user)
        home = user / "home"
        home.mkdir(parents=True, mode=0o700)
        environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108  of this run of tests
            "SLUICE_HOME": str(home),
            "HOME": str(user) if ordinary else os.environ["HOME"],
        }
        python: tuple[str, ...] = (sys.executable,)
        if ordinary:
            _seed_cache(user / ".cache" / "sluice")
            python = python_of_nobody()
            if os.geteuid() == 0:
                for path in (user, *user.rglob("*")):
                    os.chown(path, NOBODY, NOBODY)
        cluster = AuditedCluster(home, python, environment)
        started.append(cluster)
        cluster.start(level)
        return cluster

    yield start
    for cluster in started:
        cluster.sluice("down")
    for directory in made:
        shutil.rmtree(directory, ignore_errors=True)


def _seed_cache(cache: Path) -> None:
    """Copy this user's compiled plugin to ``cache``, so that it is not compiled again."""
    cache.mkdir(parents=True, mode=0o700)
    for path in (Path.home() / ".cache" / "sluice").glob("sluice-spark-*"):
        shutil.copy(path, cache)
