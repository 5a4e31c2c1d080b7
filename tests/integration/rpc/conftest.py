"""Fixtures of the RPC tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.rpc.world import Pair, World


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def pair(world: World) -> Pair:
    made = Pair(world)
    await made.start()
    return made


@pytest.fixture(autouse=True)
def _no_pending_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test may leave an error that asyncio reports on its own (lost exceptions, broken protocols)."""
    yield
    noise = [record.getMessage() for record in caplog.records if record.name == "asyncio" and record.levelno >= 40]
    assert noise == []
