"""A rehearsal that cannot continue ends at once with the cause, and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluice.core import make_private_directory
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.jvm import SparkRuntime, make_temp_dir, remove_temp_dir
from sluice.runtime.spark.training.rehearsal import Order, Rehearsal
from tests.free_ports import free_ports
from tests.processes import command_line, descendants

BROKEN = "-Xmxnone"
"""No JVM starts with it."""
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def order(spark: SparkRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    """A rehearsal order; its listeners are on loopback, as when an image is built, at ports that no other test gets."""
    monkeypatch.setattr("sluice.runtime.spark.training.rehearsal.free_ports", free_ports)
    return Order(
        spark=spark,
        directory=make_private_directory(tmp_path / "work"),
        driver_options=(),
        executor_options=(),
        executor_classes=tmp_path / "classes",
        both_in_driver=False,
        own_network=False,
    )


@pytest.fixture
def temp() -> Iterator[Path]:
    """A directory with a short path, for sockets."""
    made = make_temp_dir()
    yield made
    remove_temp_dir(made)


@pytest.mark.parametrize(
    ("which", "cause"),
    [("driver_options", "Spark's JVM did not start"), ("executor_options", "the executor ended with")],
)
async def test_a_jvm_that_does_not_start_ends_the_rehearsal_and_leaves_no_process(
    order: Order, temp: Path, tmp_path: Path, which: str, cause: str
) -> None:
    order = msgspec.structs.replace(order, **{which: (BROKEN,)})
    with pytest.raises(ClassArchiveFailed, match=cause) as failed:
        await Rehearsal(order, temp, patience=1).run()
    assert BROKEN in str(failed.value), "it tells what the JVM printed"
    left = await asyncio.to_thread(descendants, os.getpid())
    assert not [each for each in left if str(tmp_path) in str(command_line(each))]
