"""The networks of the drivers and executors of one TaskManager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.runtime.egress import EgressJournal
from sluice.runtime.job_network import JobNetwork, Outward
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager.journal_rows import JournalRows
from sluice.runtime.taskmanager.occupant import Occupant


@dataclass(frozen=True, slots=True)
class Networks:
    """Makes networks for jobs' processes.

    Attributes:
        host: that drivers and executors here tell others.
        sandbox: what they run in.
        outward: what decides about the connections of an occupant that lead out of its job.
        journal: what hears of them.
    """

    host: str
    sandbox: Sandbox
    outward: Callable[[Occupant], Outward]
    journal: EgressJournal

    async def open(self, occupant: Occupant, names: Sequence[str]) -> JobNetwork:
        """The network of one driver or executor that listens for ``names``; raises as :meth:`JobNetwork.open`."""
        rows = JournalRows(self.journal, occupant)
        network = await JobNetwork.open(
            self.host,
            names,
            ask=occupant.ask,
            outward=self.outward(occupant),
            rows=rows,
            uid=self.sandbox.uid(occupant.job_id),
        )
        rows.attach(network)
        return network
