"""The network of one driver, or of one executor: its ports on this host, and the namespace of its boxes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from sluice.runtime.job_network.egress_rules import EgressRules
from sluice.runtime.job_network.known_listeners import AskHosts, KnownListeners, asked_in
from sluice.runtime.job_network.reserved_ports import ReservedPorts
from sluice.runtime.job_network.rules import JobRules
from sluice.runtime.sandbox.network import Attachment, Connection, Network, Rows


class JobNetwork:
    """The network of one process of a job. Its rules are called in the broker's thread and run in its maker's loop."""

    def __init__(self, ports: ReservedPorts, network: Network, egress_rules: EgressRules) -> None:
        self.ports = ports
        self._network = network
        self._egress_rules = egress_rules

    @classmethod
    async def open(
        cls, host: str, names: Sequence[str], *, ask: AskHosts, egress_rules: EgressRules, rows: Rows, uid: int | None
    ) -> JobNetwork:
        """Reserve ports of ``host`` and make the namespace.

        Args:
            host: that the process tells others.
            names: what it listens for.
            ask: on which hosts the job's processes listen on a port.
            egress_rules: decides about everything else.
            rows: hear of what leaves the boxes, and of what does not.
            uid: the job's own, if it has one.

        Raises:
            PortsNotReserved: there is no free port of ``host``.
            SandboxUnavailable: this machine does not allow it.
        """
        loop = asyncio.get_running_loop()

        made: list[JobNetwork] = []
        handing_over, is_given_up = threading.Lock(), threading.Event()

        def make() -> None:
            ports = ReservedPorts(host, names)
            try:
                rules = JobRules(KnownListeners(asked_in(loop, ask)), ports, egress_rules)
                network = cls(ports, Network.open(rules, rows, uid=uid, hosts=ports.hosts), egress_rules)
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
        except asyncio.CancelledError:  # the thread goes on, and nobody would close what it makes
            with handing_over:
                is_given_up.set()
            for each in made:
                each.close()
            egress_rules.close()  # even if the thread never began
            raise
        return made[0]

    def attach(self, box: str) -> Attachment:
        """The place of a box, called ``box`` in rows."""
        return self._network.attach(box)

    def end(self, wanted: Callable[[Connection], bool], reason: str) -> int:
        """End open connections, and wait until they are ended; how many they were. From any thread but the broker's."""
        return self._network.end(wanted, reason)

    def close(self) -> None:
        """After the end of all its boxes; takes some milliseconds, from any thread. May be called again."""
        self._network.close()
        self._egress_rules.close()
        self.ports.close()
