"""Host names and the placeholder addresses that represent them in one network."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from sluice.runtime.sandbox.network.events import Address

V4 = IPv4Network("198.18.0.0/15")
"""The range for benchmarking networks (RFC 2544), which no host uses."""
V6 = IPv6Network("100::/64")
"""The discard-only range (RFC 6666)."""
MAX_NAMES = 8192
"""Maximum number of names in one network; further names do not exist in it. Names are never removed, so an address
keeps its name."""
_FIRST = 1 << 8
_NAME = re.compile(r"(?!.{254})(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class Names:
    """The names of one network."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []

    def addresses(self, name: str) -> tuple[IPv4Address, IPv6Address] | None:
        """The placeholder addresses of ``name``; None: there are too many names already."""
        number = self._numbers.get(name)
        if number is None:
            if len(self._names) >= MAX_NAMES:
                return None
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return V4[_FIRST + number], V6[_FIRST + number]

    def name_of(self, address: Address) -> str | None:
        """The name that the placeholder ``address`` represents; None: it represents none."""
        network = V4 if isinstance(address, IPv4Address) else V6
        if address not in network:
            return None
        number = int(address) - int(network.network_address) - _FIRST
        return self._names[number] if 0 <= number < len(self._names) else None

    @staticmethod
    def is_reserved(address: Address) -> bool:
        """Whether ``address`` is in the range of placeholders, which no host uses."""
        return address in (V4 if isinstance(address, IPv4Address) else V6)


def normal(name: str) -> str | None:
    """``name`` in lower case without a trailing dot; None: it is not a host name."""
    plain = name.lower().removesuffix(".")
    return plain if _NAME.fullmatch(plain) else None
