"""The last checkpoint of an attempt when its JobManager stops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sluice.runtime.checkpoint import Checkpoint
from sluice.runtime.ha import StorageUnavailable
from sluice.runtime.jobmanager.attempt.checkpoint_recorder import CheckpointRecorder

JOB = "a" * 32


class Store:
    """A fake store that writes only when the test allows it, and stops when it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.away = False
        self.written: list[int] = []

    async def add(self, job_id: str, number: int, content: bytes) -> None:
        assert (job_id, bool(content)) == (JOB, True)
        self.begun.set()
        if self.away:
            raise StorageUnavailable("it is away")
        await self.may_go_on.wait()
        await asyncio.sleep(0)
        self.written.append(number)


def recorder_of(store: Store, tmp_path: Path) -> CheckpointRecorder:
    """A recorder that writes to ``store``."""
    unused: Any = SimpleNamespace(checkpoints=tmp_path, savepoints=tmp_path)
    kept: Any = store
    return CheckpointRecorder(JOB, kept, unused)


def checkpoint(number: int) -> Checkpoint:
    """Return a checkpoint without queries."""
    return Checkpoint(number=number, attempt=1, completed_at=1, queries=())


async def test_a_checkpoint_being_written_when_the_jobmanager_stops_is_not_lost(tmp_path: Path) -> None:
    store = Store()
    recorder = recorder_of(store, tmp_path)
    assert recorder.add(checkpoint(1))
    recording = asyncio.create_task(recorder.record())
    await store.begun.wait()
    flushing = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0)
    assert not recorder.add(checkpoint(2))
    store.may_go_on.set()
    await flushing
    recording.cancel()  # as the endpoint does with all that it has handed off
    await asyncio.wait({recording})

    assert store.written == [1, 2]


async def test_a_checkpoint_waiting_for_the_storage_is_written_by_the_final_flush(tmp_path: Path) -> None:
    store = Store()
    store.away = True
    recorder = recorder_of(store, tmp_path)
    assert recorder.add(checkpoint(1))
    recording = asyncio.create_task(recorder.record())
    await store.begun.wait()
    store.away = False
    store.may_go_on.set()
    await recorder.flush()
    recording.cancel()
    await asyncio.wait({recording})

    assert store.written == [1]


async def test_unavailable_storage_does_not_keep_the_jobmanager_from_stopping(tmp_path: Path) -> None:
    store = Store()
    store.away = True
    recorder = recorder_of(store, tmp_path)
    recorder.add(checkpoint(1))
    await recorder.flush()

    assert store.written == []
