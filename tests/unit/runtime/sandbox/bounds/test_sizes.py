"""How much memory the processes of a job may use."""

from __future__ import annotations

import resource

from sluice.runtime.sandbox import IsolationConfig, Limits
from sluice.runtime.sandbox.bounds import driver_jvm_memory_mb, executor_memory_mb
from sluice.runtime.sandbox.entry_instructions import BOXES_OF_A_JOB, rlimits


def test_executor_memory_is_heap_plus_overhead_plus_python_worker_memory_for_each_core() -> None:
    config = IsolationConfig(python_worker_memory_mb=1000)
    assert executor_memory_mb(config, 768, 1) == 768 + 384 + 1000
    assert executor_memory_mb(config, 10_000, 4) == 10_000 + 1000 + 4000
    assert executor_memory_mb(IsolationConfig(memory_overhead_mb=5, python_worker_memory_mb=0), 768, 2) == 773


def test_driver_jvm_memory_is_heap_plus_overhead_plus_memory_for_one_python_worker() -> None:
    assert driver_jvm_memory_mb(IsolationConfig(python_worker_memory_mb=100), 768) == 768 + 384 + 100


def test_the_process_limit_is_multiplied_when_boxes_share_a_uid() -> None:
    limits = Limits(processes=100)
    assert rlimits(limits, shared=False)[resource.RLIMIT_NPROC] == 100
    assert rlimits(limits, shared=True)[resource.RLIMIT_NPROC] == 100 * BOXES_OF_A_JOB
