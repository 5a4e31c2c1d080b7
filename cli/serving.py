"""Runs one process of the cluster until a signal ends it, with its log, metrics and traces."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from sluice.cli.config import Configuration
from sluice.core import TRACING, Home, LogConfig, TracingConfig, configure_logging, serving
from sluice.pki import Role, SpiffeId


@dataclass(frozen=True, slots=True)
class Process:
    """The identification of a process for log and metrics; ``name`` as in its certificate: ``taskmanager/tm-1``."""

    home: Home
    name: str
    log: LogConfig
    tracing: TracingConfig
    identity: str


def process_of(home: Home, configuration: Configuration, role: Role, name: str) -> Process:
    """The process ``name`` in ``role``."""
    identity = SpiffeId.process(configuration.pki.trust_domain, role, name)
    return Process(home, f"{role.value}/{name}", configuration.log, configuration.tracing, str(identity))


def serve(main: Coroutine[Any, Any, None], process: Process | None = None) -> None:
    """Run ``main`` until it ends or SIGTERM/SIGINT cancels it; serves the metrics of ``process`` meanwhile."""
    if process is None:
        configure_logging()
        asyncio.run(_until_signal(main))
        return
    configure_logging(process.log, process.name, process.identity)
    asyncio.run(_until_signal(_measured(main, process)))


async def _measured(main: Coroutine[Any, Any, None], process: Process) -> None:
    TRACING.start(process.tracing, process.name)
    try:
        with contextlib.closing(main):  # a coroutine that never starts must not cause a warning at the end
            async with serving(process.home, process.name):
                await main
    finally:
        await asyncio.to_thread(TRACING.stop)


async def _until_signal(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        # Closing the loop would restore the default: a second signal would then end the process as if killed.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
