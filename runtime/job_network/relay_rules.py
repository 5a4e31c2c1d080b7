"""The way out of one box through the relay of its TaskManager: the gateway decides about each connection."""

from __future__ import annotations

import errno
import ipaddress

from sluice.runtime.egress_relay import RelayFailed, RelayRoute
from sluice.runtime.sandbox.network import Answer, Connect, Decision, HostAddress, Refuse


class RelayRules:
    """:class:`EgressRules` that lead each connection of one attempt to the relay.

    A connection that the gateway refuses has been made as far as the program can tell, and then ends.
    """

    def __init__(self, route: RelayRoute) -> None:
        self._route = route

    async def decide(self, connect: Connect) -> Decision:
        """Give the program a connection to the relay, which has been told where it is to go."""
        host = connect.name or (f"[{connect.address}]" if connect.address.version == 6 else str(connect.address))
        try:
            first = self._route.preamble(f"{host}:{connect.port}")
        except RelayFailed:
            return Refuse(errno.ECONNREFUSED, "unclear_destination")
        address, port = self._route.address
        return HostAddress(ipaddress.IPv4Address(address), port, first, note=host)

    async def resolve(self, name: str) -> Answer:  # noqa: ARG002 - whatever it is
        """An address of the box alone: nobody is asked, and connecting to it is what the gateway decides about."""
        return True
