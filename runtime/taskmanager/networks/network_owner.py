"""The process of a job to which a network belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.job_network import AskHosts


@dataclass(frozen=True, slots=True)
class NetworkOwner:
    """The process of a job to which a network belongs.

    Attributes:
        job_id: of the job.
        process: ``driver``, or ``executor/`` and its number.
        attempt: of the job's driver; 0 where that is not known.
        identity: the directory of its identity.
        ask: on which hosts the job's processes listen on a port.
        end: ends the process at once, from any thread: a connection that must end cannot be ended otherwise.
    """

    job_id: str
    process: str
    attempt: int
    identity: Path
    ask: AskHosts
    end: Callable[[str], object]
