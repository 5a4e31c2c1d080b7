"""Computes memory limits for the processes of a job from the configuration. No I/O."""

from __future__ import annotations

from sluice.runtime.sandbox.config import IsolationConfig

LEAST_OVERHEAD_MB = 384
OVERHEAD_SHARE = 10
"""A JVM uses a tenth of its heap size outside the heap. As in Spark (``spark.executor.memoryOverhead``)."""


def executor_memory_mb(config: IsolationConfig, heap_mb: int, cores: int) -> int:
    """The memory limit of an executor in MiB: its JVM, and the Python workers of each core."""
    return jvm_memory_mb(config, heap_mb) + max(1, cores) * config.python_worker_memory_mb


def driver_jvm_memory_mb(config: IsolationConfig, heap_mb: int) -> int:
    """The memory limit of a driver's JVM in MiB. It also starts Python workers, for analysis and streaming sinks."""
    return jvm_memory_mb(config, heap_mb) + config.python_worker_memory_mb


def jvm_memory_mb(config: IsolationConfig, heap_mb: int) -> int:
    """The memory limit in MiB of a JVM that starts no other processes."""
    overhead = config.memory_overhead_mb or max(LEAST_OVERHEAD_MB, heap_mb // OVERHEAD_SHARE)
    return heap_mb + overhead
