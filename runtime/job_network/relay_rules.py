"""The egress rules of one sandbox that use the relay of its TaskManager: the gateway decides about each connection."""

from __future__ import annotations

import errno
import ipaddress

from sluice.runtime.egress_relay import RelayFailed, RelayRoute
from sluice.runtime.sandbox.network import Answer, Connect, Decision, HostAddress, Refuse


class RelayRules:
    """:class:`EgressRules` that send each connection of one attempt to the relay.

    To the program, a connection that the gateway refuses looks established, and then closes.
    """

    def __init__(self, route: RelayRoute) -> None:
        self._route = route

    async def decide(self, connect: Connect) -> Decision:
        """Connect the program to the relay, with a preamble that names the destination."""
        host = connect.name or (f"[{connect.address}]" if connect.address.version == 6 else str(connect.address))
        try:
            first = self._route.preamble(f"{host}:{connect.port}")
        except RelayFailed:
            return Refuse(errno.ECONNREFUSED, "unclear_destination")
        address, port = self._route.address
        return HostAddress(ipaddress.IPv4Address(address), port, first, note=host)

    async def resolve(self, name: str) -> Answer:  # noqa: ARG002 - the same for every name
        """A sandbox-local address for every name. Nobody is asked; the gateway decides when the program connects."""
        return True
