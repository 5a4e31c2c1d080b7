"""Which connections of a box are its job's own, and who decides about the others."""

from __future__ import annotations

import socket

from sluice.runtime.job_network.egress_rules import EgressRules
from sluice.runtime.job_network.known_listeners import KnownListeners
from sluice.runtime.job_network.reserved_ports import PRIVATE_PORTS, ReservedPorts
from sluice.runtime.sandbox.network import Address, Answer, Connect, Decision, HostAddress, Inside


class JobRules:
    """The rules of one box's network, :class:`sluice.runtime.sandbox.network.Rules`.

    The order matters where a cluster has one machine: its processes are at 127.0.0.1, as is what listens in the box.
    Ports tell them apart: those of the job's processes are none that the kernel gives programs in a box.
    """

    def __init__(self, listeners: KnownListeners, ports: ReservedPorts, egress_rules: EgressRules) -> None:
        self._listeners = listeners
        self._ports = ports
        self._egress_rules = egress_rules

    async def decide(self, connect: Connect) -> Decision:
        """To the job's processes and shuffle workers as asked, on loopback inside, else as the policy says."""
        local = connect.name is None and connect.address.is_loopback
        if local and connect.port in PRIVATE_PORTS:
            return Inside()
        found = await self._listeners.find(connect.name or connect.address, connect.port)
        if found is not None:
            return HostAddress(found, connect.port, recorded=False)
        return Inside() if local else await self._egress_rules.decide(connect)

    async def resolve(self, name: str) -> Answer:
        """What the way out says; hosts of the job have addresses of the box as well."""
        answer = await self._egress_rules.resolve(name)
        return answer or await self._listeners.has_host(name) or answer

    def listener(self, address: Address, port: int) -> socket.socket | None:
        """A socket on a port that is kept for the box."""
        return self._ports.listener(address, port)
