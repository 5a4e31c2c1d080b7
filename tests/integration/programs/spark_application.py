"""Starts unmodified Spark with a configuration directory for this test only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN

SPARK = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "spark")
OTHER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
JOB = Path(__file__).resolve().with_name("spark_job.py")


@contextlib.contextmanager
def started(root: Path, master: str) -> Iterator[subprocess.Popen[str]]:
    """Run the job with the configuration in ``root/conf``; it is killed at the end in any case."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "SPARK_CONF_DIR": str(root / "conf"),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(root / "work"),
        "PYSPARK_PYTHON": sys.executable,
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }
    with (
        (root / "log").open("wb") as messages,
        subprocess.Popen(
            [sys.executable, JOB, master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            env=environment,
            cwd=root,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            # Python and the JVM that it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
