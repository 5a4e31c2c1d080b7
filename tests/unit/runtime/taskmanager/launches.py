"""A driver launch for tests, and a process that ends at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sluice.runtime.messages import DriverLaunch
from sluice.runtime.node import ChildProcess

LAUNCH = DriverLaunch(
    job_id="0" * 32,
    attempt=1,
    allocation_id="allocation",
    name="job",
    executors=1,
    executor_cores=1,
    executor_memory_mb=512,
    driver_memory_mb=512,
    stop_grace=1.0,
    start_timeout=60.0,
    lease=0.0,
    may_have_waited=True,
)


async def ending(code: int, directory: Path) -> ChildProcess:
    """Start a process that ends with ``code``."""
    return await ChildProcess.start(
        (sys.executable, "-c", f"raise SystemExit({code})"),
        env={},
        cwd=directory,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
