"""The network of a warm sandbox, which waits for a job: nothing in it can connect or listen before the job arrives.

The job brings the rules and the recorder of connections. Until then the broker refuses everything. The broker runs
outside of the sandbox, so this does not depend on what runs inside.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Sequence

from sluice.core import made_in_thread
from sluice.runtime.job_network.egress_rules import EgressRules
from sluice.runtime.job_network.job_network import JobNetwork
from sluice.runtime.job_network.known_listeners import AskHosts, KnownListeners, asked_in
from sluice.runtime.job_network.reserved_ports import ReservedPorts
from sluice.runtime.job_network.rules import JobRules
from sluice.runtime.sandbox.network import (
    Address,
    Answer,
    Attachment,
    Connect,
    Connection,
    ConnectionObserver,
    Decision,
    Gate,
    Network,
    Refusal,
    Refuse,
    Rules,
    Traffic,
)


class WaitingNetwork:
    """A network without a job yet. It becomes the network of one job (:meth:`admit`), or is closed."""

    def __init__(self, host: str, network: Network, later: _Later, gate: Gate) -> None:
        self._host = host
        self._network = network
        self._later = later
        self._gate = gate

    @classmethod
    async def open(cls, host: str, *, uid: int | None) -> WaitingNetwork:
        """Create the namespace.


        Args:
            host: the host that the job's process will advertise.
            uid: the sandbox's own uid, if it has one.

        Raises:
            PortsNotReserved: ``host`` is not an address of this machine.
            SandboxUnavailable: this machine does not allow network namespaces for jobs.
        """

        def make() -> WaitingNetwork:
            later, gate = _Later(), Gate(open=False)
            hosts = ReservedPorts(host, ()).hosts
            return cls(host, Network.open(later, later, uid=uid, hosts=hosts, gate=gate), later, gate)

        opening = asyncio.create_task(asyncio.to_thread(make), name="network of a warm sandbox")
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    @property
    def refused(self) -> int:
        """The number of calls that were refused because there was no job yet."""
        return self._gate.refused

    def attach(self, box: str) -> Attachment:
        """The attachment of a sandbox; the journal calls it ``box``."""
        return self._network.attach(box)

    async def admit(
        self, names: Sequence[str], *, ask: AskHosts, egress_rules: EgressRules, observer: ConnectionObserver
    ) -> JobNetwork:
        """Reserve ports and apply the job's rules from now on.


        Args:
            names: the purposes of the process's listening ports.
            ask: returns the hosts on which the job's processes listen on a port.
            egress_rules: decide about all other destinations.
            observer: records the connections that leave the sandboxes, and those that are refused.

        Raises:
            PortsNotReserved: the host has no free port.
        """
        loop = asyncio.get_running_loop()
        try:
            ports = await made_in_thread(lambda: ReservedPorts(self._host, names))
        except BaseException:
            egress_rules.close()
            raise
        self._later.rules = JobRules(KnownListeners(asked_in(loop, ask)), ports, egress_rules)
        self._later.observer = observer
        self._gate.open = True
        return JobNetwork(ports, self._network, egress_rules)

    def close(self) -> None:
        """Close it because no job came. May be called from any thread."""
        self._network.close()


def _close_unwanted(opening: asyncio.Task[WaitingNetwork]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().close, name="close a network", daemon=True).start()


class _Later:
    """Rules and an observer that are set later. Until then everything is refused and nothing is recorded."""

    def __init__(self) -> None:
        self.rules: Rules | None = None
        self.observer: ConnectionObserver | None = None

    async def decide(self, connect: Connect) -> Decision:
        return Refuse(errno.EACCES, "no_job_yet") if self.rules is None else await self.rules.decide(connect)

    async def resolve(self, name: str) -> Answer:
        return False if self.rules is None else await self.rules.resolve(name)

    def listener(self, address: Address, port: int) -> socket.socket | None:
        return None if self.rules is None else self.rules.listener(address, port)

    def opened(self, connection: Connection) -> None:
        if self.observer is not None:
            self.observer.opened(connection)

    def moved(self, connection: Connection, traffic: Traffic) -> None:
        if self.observer is not None:
            self.observer.moved(connection, traffic)

    def closed(self, connection: Connection, traffic: Traffic, seconds: float, reason: str) -> None:
        if self.observer is not None:
            self.observer.closed(connection, traffic, seconds, reason)

    def refused(self, refusal: Refusal) -> None:
        if self.observer is not None:
            self.observer.refused(refusal)

    def stuck(self, connection: Connection) -> None:
        if self.observer is not None:
            self.observer.stuck(connection)
