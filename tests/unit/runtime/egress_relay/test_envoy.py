"""The Envoy of an egress relay is kept running."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from sluice.core.tasks import end_tasks
from sluice.runtime.egress_relay import envoy
from sluice.runtime.egress_relay.envoy import RelayEnvoy
from tests.waiting import until


class Process:
    """A process that runs until it is stopped."""

    pid = 7

    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, _seconds: float) -> None:
        pass


async def test_envoy_is_started_again_after_a_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[Any] = [BlockingIOError(errno.EAGAIN, "fork"), Process()]

    async def start(_self: RelayEnvoy, _argv: list[str]) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(envoy, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(envoy, "envoy_program", lambda: "envoy")
    monkeypatch.setattr(RelayEnvoy, "_start", start)
    relay = RelayEnvoy(tmp_path, tmp_path / "socket", lambda: None)
    running = asyncio.create_task(relay.keep_running())
    await until(lambda: relay.pid == Process.pid, "it is not started again")
    await end_tasks(running)
