"""Where the shuffle service keeps what a job writes."""

from __future__ import annotations

from typing import Literal

from sluice.runtime.messages.base import Message

Seal = bool | Literal["auto"]
"""Whether segments of shuffles are sealed for their readers; auto: where the driver's CPU has AES instructions."""


class WorkerAddress(Message, frozen=True):
    """Where a ShuffleWorker serves the data channel; ``name`` is that in its certificate."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name} at {self.host}:{self.port}"


class OutputLocation(Message, frozen=True):
    """Where the map outputs that were pushed to worker ``pushed_to`` are served now: there, or by its successor."""

    pushed_to: str
    address: WorkerAddress


class ShuffleAllocation(Message, frozen=True):
    """Where a shuffle is kept.

    Attributes:
        shuffle_number: its number on the data plane, unique in the job over all driver attempts and SparkContexts
            (Spark counts its own ``shuffle_id`` from 0 in each SparkContext).
        workers: which keep it; every one of them knows the job already.
        replicas: on how many of them the output of each map task has to be.
        integrity_key: of the job, for the check values of its data.
    """

    shuffle_number: int
    workers: tuple[WorkerAddress, ...]
    replicas: int
    integrity_key: bytes
