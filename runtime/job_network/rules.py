"""Decides which connections of a sandbox stay within its job, and passes the others to the egress rules."""

from __future__ import annotations

import socket

from sluice.runtime.job_network.egress_rules import EgressRules
from sluice.runtime.job_network.known_listeners import KnownListeners
from sluice.runtime.job_network.reserved_ports import PRIVATE_PORTS, ReservedPorts
from sluice.runtime.sandbox.network import Address, Answer, Connect, Decision, HostAddress, Inside


class JobRules:
    """The rules of one sandbox's network; a :class:`sluice.runtime.sandbox.network.Rules`.

    The order matters for a cluster on one machine: its processes listen on 127.0.0.1, and so do programs in the
    sandbox. The port tells them apart: ports of the job's processes are outside of the sandbox's ephemeral range.
    """

    def __init__(self, listeners: KnownListeners, ports: ReservedPorts, egress_rules: EgressRules) -> None:
        self._listeners = listeners
        self._ports = ports
        self._egress_rules = egress_rules

    async def decide(self, connect: Connect) -> Decision:
        """Allow the job's processes and shuffle workers, keep loopback inside, and let the policy decide otherwise."""
        local = connect.name is None and connect.address.is_loopback
        if local and connect.port in PRIVATE_PORTS:
            return Inside()
        found = await self._listeners.find(connect.name or connect.address, connect.port)
        if found is not None:
            return HostAddress(found, connect.port, recorded=False)
        return Inside() if local else await self._egress_rules.decide(connect)

    async def resolve(self, name: str) -> Answer:
        """The answer of the egress rules; hosts of the job get a sandbox-local address too."""
        answer = await self._egress_rules.resolve(name)
        return answer or await self._listeners.has_host(name) or answer

    def listener(self, address: Address, port: int) -> socket.socket | None:
        """A socket on a port that is reserved for the sandbox."""
        return self._ports.listener(address, port)
