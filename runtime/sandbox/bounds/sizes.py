"""How much memory the processes of a job may use, from what is configured. Decisions only."""

from __future__ import annotations

from sluice.runtime.sandbox.config import IsolationConfig

LEAST_OVERHEAD_MB = 384
OVERHEAD_SHARE = 10
"""A JVM uses a tenth of its heap besides it; this and the minimum are Spark's for ``spark.executor.memoryOverhead``."""


def executor_memory_mb(config: IsolationConfig, heap_mb: int, cores: int) -> int:
    """MiB of an executor: its JVM, and the Python workers of each of its cores."""
    return jvm_memory_mb(config, heap_mb) + max(1, cores) * config.python_worker_memory_mb


def driver_jvm_memory_mb(config: IsolationConfig, heap_mb: int) -> int:
    """MiB of a driver's JVM, which starts Python workers itself for what it analyses and for sinks of streams."""
    return jvm_memory_mb(config, heap_mb) + config.python_worker_memory_mb


def jvm_memory_mb(config: IsolationConfig, heap_mb: int) -> int:
    """MiB of a JVM that starts nothing else."""
    overhead = config.memory_overhead_mb or max(LEAST_OVERHEAD_MB, heap_mb // OVERHEAD_SHARE)
    return heap_mb + overhead
