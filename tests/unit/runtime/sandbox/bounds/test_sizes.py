"""How much memory the processes of a job may use."""

from __future__ import annotations

import resource

from sluice.runtime.sandbox import IsolationConfig, Limits
from sluice.runtime.sandbox.bounds import driver_jvm_memory_mb, executor_memory_mb
from sluice.runtime.sandbox.entry_instructions import BOXES_OF_A_JOB, rlimits


def test_an_executor_has_its_heap_an_overhead_and_a_share_for_each_cores_python_workers() -> None:
    config = IsolationConfig(python_worker_memory_mb=1000)
    assert executor_memory_mb(config, 768, 1) == 768 + 384 + 1000
    assert executor_memory_mb(config, 10_000, 4) == 10_000 + 1000 + 4000
    assert executor_memory_mb(IsolationConfig(memory_overhead_mb=5, python_worker_memory_mb=0), 768, 2) == 773


def test_the_jvm_of_a_driver_has_a_share_for_one_python_worker() -> None:
    assert driver_jvm_memory_mb(IsolationConfig(python_worker_memory_mb=100), 768) == 768 + 384 + 100


def test_boxes_that_share_a_uid_do_not_take_each_others_processes() -> None:
    limits = Limits(processes=100)
    assert rlimits(limits, shared=False)[resource.RLIMIT_NPROC] == 100
    assert rlimits(limits, shared=True)[resource.RLIMIT_NPROC] == 100 * BOXES_OF_A_JOB
