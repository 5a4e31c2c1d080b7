"""The networks of the drivers and executors of one TaskManager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sluice.runtime.egress import EgressJournal
from sluice.runtime.job_network import EgressRules, JobNetwork, WaitingNetwork
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager.networks.journal_rows import JournalRows
from sluice.runtime.taskmanager.networks.network_owner import NetworkOwner


@dataclass(frozen=True, slots=True)
class Networks:
    """Opens the networks of jobs' processes.


    Attributes:
        host: the host that drivers and executors of this TaskManager advertise.
        sandbox: the sandbox that they run in.
        egress_rules: returns the rules for connections of an owner to destinations outside of its job.
        journal: records these connections.
    """

    host: str
    sandbox: Sandbox
    egress_rules: Callable[[NetworkOwner], EgressRules]
    journal: EgressJournal

    async def open(
        self,
        owner: NetworkOwner,
        names: Sequence[str],
        tell: Callable[[tuple[int, ...]], Awaitable[object]],
        waiting: WaitingNetwork | None = None,
    ) -> JobNetwork:
        """The network of one driver or executor; raises the errors of :meth:`JobNetwork.open`.


        Args:
            owner: the process that owns the network.
            names: the purposes of its listening ports.
            tell: tells the JobMaster the ports. If it fails, the network is closed.
            waiting: the network of the warm sandbox that becomes the owner's; None: create one.
        """
        network = await self._open(owner, names, waiting)
        try:
            await tell(network.ports.ports)
        except BaseException:
            await asyncio.to_thread(network.close)
            raise
        return network

    async def _open(self, owner: NetworkOwner, names: Sequence[str], waiting: WaitingNetwork | None) -> JobNetwork:
        rows = JournalRows(self.journal, owner)
        ask, egress_rules = owner.ask, self.egress_rules(owner)
        if waiting is not None:
            network = await waiting.admit(names, ask=ask, egress_rules=egress_rules, observer=rows)
        else:
            uid = self.sandbox.uid(owner.job_id)
            network = await JobNetwork.open(
                self.host, names, ask=ask, egress_rules=egress_rules, observer=rows, uid=uid
            )
        rows.attach(network)
        return network

    async def wait(self, box_id: str) -> WaitingNetwork:
        """The network of a warm sandbox with the uid of ``box_id``; raises as :meth:`WaitingNetwork.open`."""
        return await WaitingNetwork.open(self.host, uid=self.sandbox.uid(box_id))
