"""Stopping an Envoy process. Its start is tested with the real Envoy."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from sluice.gateway.proxy.envoy_process import EnvoyProcess

DEADLINE_SECONDS = 40.0


async def test_a_process_that_ignores_sigterm_is_killed_when_stopping_it_is_cancelled(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    envoy = EnvoyProcess(process, tmp_path / "admin.sock", tmp_path / "log")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await process.stdout.readline()
        stopping = asyncio.create_task(envoy.stop())
        await asyncio.sleep(0)  # it begins, and waits
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping

        assert await envoy.wait() == -signal.SIGKILL
        assert not await process.stdout.read()  # to the end, so that the pipe is closed
