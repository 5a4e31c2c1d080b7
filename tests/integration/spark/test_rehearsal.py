"""A rehearsal that cannot go on: it ends at once with the cause, and leaves no process behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import psutil
import pytest

from sluice.core import make_private_directory
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.jvm.command import SparkRuntime
from sluice.runtime.spark.training.rehearsal import Order, Rehearsal

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def order(spark: SparkRuntime, tmp_path: Path) -> Order:
    """What to rehearse; its listeners are on loopback, as in the building of images."""
    return Order(
        spark=spark,
        directory=make_private_directory(tmp_path / "work"),
        driver_options=(),
        executor_options=(),
        executor_classes=tmp_path / "classes",
        both_in_driver=False,
        own_network=False,
    )


@pytest.mark.parametrize(
    ("driver_options", "executor_options", "cause"),
    [
        (("-XX:NoSuchOption",), (), "Spark's JVM did not start"),
        ((), ("-XX:NoSuchOption",), "the executor ended with"),
    ],
    ids=["driver", "executor"],
)
async def test_a_jvm_that_does_not_start_ends_it(
    order: Order, tmp_path: Path, driver_options: tuple[str, ...], executor_options: tuple[str, ...], cause: str
) -> None:
    temp = make_private_directory(tmp_path / "temp")
    order = msgspec.structs.replace(order, driver_options=driver_options, executor_options=executor_options)
    with pytest.raises(ClassArchiveFailed, match=cause) as failed:
        await Rehearsal(order, temp, patience=1).run()
    assert "NoSuchOption" in str(failed.value), "it tells what the JVM printed"
    left = await asyncio.to_thread(psutil.Process().children, recursive=True)
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE and str(tmp_path) in str(each.cmdline())]
