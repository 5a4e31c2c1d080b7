"""The network of a box that waits for a job: nothing in it connects or listens before it is the job's.

Its rules, and who hears of its connections, come with the job. Until then the broker refuses all, outside of the box:
it does not depend on what runs in it.
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
    Decision,
    Gate,
    Network,
    Refusal,
    Refuse,
    Rows,
    Rules,
    Traffic,
)


class WaitingNetwork:
    """See the module's documentation. It becomes one job's network (:meth:`admit`), or is closed."""

    def __init__(self, host: str, network: Network, later: _Later, gate: Gate) -> None:
        self._host = host
        self._network = network
        self._later = later
        self._gate = gate

    @classmethod
    async def open(cls, host: str, *, uid: int | None) -> WaitingNetwork:
        """Make the namespace.

        Args:
            host: that the job's process will tell others.
            uid: the box's own, if it has one.

        Raises:
            PortsNotReserved: ``host`` is none of this machine.
            SandboxUnavailable: this machine does not allow it.
        """

        def make() -> WaitingNetwork:
            later, gate = _Later(), Gate(open=False)
            hosts = ReservedPorts(host, ()).hosts
            return cls(host, Network.open(later, later, uid=uid, hosts=hosts, gate=gate), later, gate)

        opening = asyncio.create_task(asyncio.to_thread(make), name="network of a box that waits")
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    @property
    def refused(self) -> int:
        """How many calls failed because they came before the job."""
        return self._gate.refused

    def attach(self, box: str) -> Attachment:
        """The place of a box, called ``box`` in rows."""
        return self._network.attach(box)

    async def admit(self, names: Sequence[str], *, ask: AskHosts, egress_rules: EgressRules, rows: Rows) -> JobNetwork:
        """Reserve ports, and let the job's rules decide from now on.

        Args:
            names: what the process listens for.
            ask: on which hosts the job's processes listen on a port.
            egress_rules: decides about everything else.
            rows: hear of what leaves the boxes, and of what does not.

        Raises:
            PortsNotReserved: there is no free port of the host.
        """
        loop = asyncio.get_running_loop()
        try:
            ports = await made_in_thread(lambda: ReservedPorts(self._host, names))
        except BaseException:
            egress_rules.close()
            raise
        self._later.rules = JobRules(KnownListeners(asked_in(loop, ask)), ports, egress_rules)
        self._later.rows = rows
        self._gate.open = True
        return JobNetwork(ports, self._network, egress_rules)

    def close(self) -> None:
        """No job came; from any thread."""
        self._network.close()


def _close_unwanted(opening: asyncio.Task[WaitingNetwork]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().close, name="close a network", daemon=True).start()


class _Later:
    """Rules and rows that come later; until then nothing is allowed, and nobody hears."""

    def __init__(self) -> None:
        self.rules: Rules | None = None
        self.rows: Rows | None = None

    async def decide(self, connect: Connect) -> Decision:
        return Refuse(errno.EACCES, "no_job_yet") if self.rules is None else await self.rules.decide(connect)

    async def resolve(self, name: str) -> Answer:
        return False if self.rules is None else await self.rules.resolve(name)

    def listener(self, address: Address, port: int) -> socket.socket | None:
        return None if self.rules is None else self.rules.listener(address, port)

    def opened(self, connection: Connection) -> None:
        if self.rows is not None:
            self.rows.opened(connection)

    def moved(self, connection: Connection, traffic: Traffic) -> None:
        if self.rows is not None:
            self.rows.moved(connection, traffic)

    def closed(self, connection: Connection, traffic: Traffic, seconds: float, reason: str) -> None:
        if self.rows is not None:
            self.rows.closed(connection, traffic, seconds, reason)

    def refused(self, refusal: Refusal) -> None:
        if self.rows is not None:
            self.rows.refused(refusal)

    def stuck(self, connection: Connection) -> None:
        if self.rows is not None:
            self.rows.stuck(connection)
