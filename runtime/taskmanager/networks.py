"""The networks of the drivers and executors of one TaskManager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.runtime.egress import EgressJournal
from sluice.runtime.job_network import EgressRules, JobNetwork
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager.journal_rows import JournalRows
from sluice.runtime.taskmanager.network_owner import NetworkOwner


@dataclass(frozen=True, slots=True)
class Networks:
    """Makes networks for jobs' processes.

    Attributes:
        host: that drivers and executors here tell others.
        sandbox: what they run in.
        egress_rules: what decides about the connections of an owner that lead out of its job.
        journal: what hears of them.
    """

    host: str
    sandbox: Sandbox
    egress_rules: Callable[[NetworkOwner], EgressRules]
    journal: EgressJournal

    async def open(self, owner: NetworkOwner, names: Sequence[str]) -> JobNetwork:
        """The network of one driver or executor that listens for ``names``; raises as :meth:`JobNetwork.open`."""
        rows = JournalRows(self.journal, owner)
        network = await JobNetwork.open(
            self.host,
            names,
            ask=owner.ask,
            egress_rules=self.egress_rules(owner),
            rows=rows,
            uid=self.sandbox.uid(owner.job_id),
        )
        rows.attach(network)
        return network
