"""The process of a job that owns a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.job_network import AskHosts


@dataclass(frozen=True, slots=True)
class NetworkOwner:
    """The process of a job that owns a network.

    Attributes:
        job_id: the id of the job.
        process: ``driver``, or ``executor/`` and its number.
        attempt: the attempt of the job's driver; 0 if it is not known.
        identity: the directory of the process's identity.
        ask: returns the hosts on which the job's processes listen on a port.
        end: ends the process at once, for a connection that cannot be ended otherwise. Called from any thread.
    """

    job_id: str
    process: str
    attempt: int
    identity: Path
    ask: AskHosts
    end: Callable[[str], object]
