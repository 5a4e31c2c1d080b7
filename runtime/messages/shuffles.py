"""Messages about the places where the shuffle service keeps the output of jobs."""

from __future__ import annotations

from typing import Literal

from sluice.runtime.messages.base import Message

Seal = bool | Literal["auto"]
"""Whether shuffle segments are encrypted for their readers; auto: if the driver's CPU has AES instructions."""


class WorkerAddress(Message, frozen=True):
    """The address of a ShuffleWorker's data channel; ``name`` is the name in its certificate."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name} at {self.host}:{self.port}"


class OutputLocation(Message, frozen=True):
    """The worker that now serves the map outputs pushed to worker ``pushed_to``: the same one or its successor."""

    pushed_to: str
    address: WorkerAddress


class ShuffleAllocation(Message, frozen=True):
    """The workers that keep a shuffle.

    Attributes:
        shuffle_number: its number on the data plane, unique in the job over all driver attempts and SparkContexts
            (Spark counts its own ``shuffle_id`` from 0 in each SparkContext).
        workers: the workers; each of them knows the job already.
        replicas: how many of the workers must have the output of each map task.
        integrity_key: key of the job for the check values of its data.
    """

    shuffle_number: int
    workers: tuple[WorkerAddress, ...]
    replicas: int
    integrity_key: bytes
