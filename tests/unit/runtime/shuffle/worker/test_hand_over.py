"""A worker forgets what it has handed over."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import cast

import pytest

from sluice.pki.tls import TlsIdentity
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.worker.config import WorkerConfig
from sluice.runtime.shuffle.worker.hand_over import HandOvers
from sluice.runtime.shuffle.worker.storage.store import ShuffleStore

JOB = "a" * 32


@pytest.mark.parametrize("number", [None, 0], ids=["the job", "the shuffle"])
async def test_a_released_shuffle_is_not_kept_by_its_hand_over(tmp_path: Path, number: int | None) -> None:
    """Its files would stay open, and take space until the worker ends."""
    store = ShuffleStore(WorkerConfig((tmp_path,)))
    store.allow_job(JOB, bytes(8))
    data, _ = store.job(JOB).shuffle(0, create=True)
    hand_overs = HandOvers(cast("TlsIdentity", None), store)
    assert hand_overs.hand_over(JOB, 0, WorkerAddress(name="w-2", host="h", port=1)) == 0
    store.release_job(JOB)
    hand_overs.forget(JOB, 1)
    known = weakref.ref(data)
    del data
    gc.collect()
    assert known() is not None, "another shuffle was released"
    hand_overs.forget(JOB, number)
    gc.collect()
    assert known() is None
