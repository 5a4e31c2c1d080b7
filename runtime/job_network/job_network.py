"""The network of one driver or executor: its ports on this host, and the network namespace of its sandboxes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from sluice.runtime.job_network.egress_rules import EgressRules
from sluice.runtime.job_network.known_listeners import AskHosts, KnownListeners, asked_in
from sluice.runtime.job_network.reserved_ports import ReservedPorts
from sluice.runtime.job_network.rules import JobRules
from sluice.runtime.sandbox.network import Attachment, Connection, ConnectionObserver, Network


class JobNetwork:
    """The network of one process of a job. The broker's thread calls its rules; they run in the creator's loop."""

    def __init__(self, ports: ReservedPorts, network: Network, egress_rules: EgressRules) -> None:
        self.ports = ports
        self._network = network
        self._egress_rules = egress_rules

    @classmethod
    async def open(
        cls,
        host: str,
        names: Sequence[str],
        *,
        ask: AskHosts,
        egress_rules: EgressRules,
        observer: ConnectionObserver,
        uid: int | None,
    ) -> JobNetwork:
        """Reserve ports of ``host`` and create the namespace.


        Args:
            host: the host that the process advertises.
            names: the purposes of its listening ports.
            ask: returns the hosts on which the job's processes listen on a port.
            egress_rules: decide about all other destinations.
            observer: records the connections that leave the sandboxes, and those that are refused.
            uid: the job's own uid, if it has one.

        Raises:
            PortsNotReserved: ``host`` has no free port.
            SandboxUnavailable: this machine does not allow network namespaces for jobs.
        """
        loop = asyncio.get_running_loop()

        made: list[JobNetwork] = []
        handing_over, is_given_up = threading.Lock(), threading.Event()

        def make() -> None:
            ports = ReservedPorts(host, names)
            try:
                rules = JobRules(KnownListeners(asked_in(loop, ask)), ports, egress_rules)
                network = cls(ports, Network.open(rules, observer, uid=uid, hosts=ports.hosts), egress_rules)
            except BaseException:
                ports.close()
                egress_rules.close()
                raise
            with handing_over:
                if not is_given_up.is_set():
                    made.append(network)
                    return
            network.close()

        try:
            await asyncio.to_thread(make)
        except asyncio.CancelledError:  # the thread goes on, and nobody else would close the network that it opens
            with handing_over:
                is_given_up.set()
            for each in made:
                each.close()
            egress_rules.close()  # even if the thread never started
            raise
        return made[0]

    def attach(self, box: str) -> Attachment:
        """The attachment of a sandbox; the journal calls it ``box``."""
        return self._network.attach(box)

    def end(self, wanted: Callable[[Connection], bool], reason: str) -> int:
        """End open connections, wait for that, and return their number. Call it from any thread but the broker's."""
        return self._network.end(wanted, reason)

    def close(self) -> None:
        """Close it after all its sandboxes have ended. Takes some milliseconds. Thread-safe and idempotent."""
        self._network.close()
        self._egress_rules.close()
        self.ports.close()
