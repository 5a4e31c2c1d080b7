"""Blocks of addresses outside the public internet, and where each leads. Values only.

Sources: the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890, RFC 8190), RFC 1918, RFC 4193, RFC 6598,
and the documentation of the clouds for their metadata services.
"""

from __future__ import annotations

import enum
import ipaddress
from functools import cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Reach(enum.Enum):
    """Where an address leads."""

    PUBLIC = "public"
    PRIVATE = "private"
    """A private network."""
    SPECIAL = "special"
    """This machine, its link, a metadata service, or an address that stands for another one."""


_METADATA = (
    "169.254.169.254/32",  # AWS, Azure, GCP, OpenStack and most others
    "169.254.169.253/32",  # AWS: DNS
    "169.254.170.2/32",  # AWS ECS: credentials of tasks
    "169.254.170.23/32",  # AWS EKS: credentials of pods
    "168.63.129.16/32",  # Azure: WireServer
    "100.100.100.200/32",  # Alibaba
    "192.0.0.192/32",  # Oracle
    "fd00:ec2::254/128",  # AWS
    "fd00:ec2::23/128",  # AWS EKS
    "fd20:ce::254/128",  # GCP
)
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
_SPECIAL = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",  # unspecified, loopback, and IPv4-compatible
    "::ffff:0:0/96",  # IPv4-mapped
    "64:ff9b::/96",  # NAT64
    "64:ff9b:1::/48",  # NAT64 with a local prefix
    "100::/64",
    "2001::/23",  # Teredo and other protocols
    "2001:db8::/32",
    "2002::/16",  # 6to4
    "3fff::/20",
    "5f00::/16",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
)
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")


@cache
def _blocks() -> tuple[tuple[Network, Reach], ...]:
    """The smallest block first."""
    named = [(text, Reach.SPECIAL) for text in (*_METADATA, *_SPECIAL)] + [(text, Reach.PRIVATE) for text in _PRIVATE]
    blocks = [(ipaddress.ip_network(text), reach) for text, reach in named]
    return tuple(sorted(blocks, key=lambda block: -block[0].prefixlen))


def canonical(address: Address) -> Address:
    """The address that a connection goes to: of an IPv4-mapped one the IPv4 address (RFC 4291, 2.5.5.2)."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def block_of(address: Address) -> tuple[Network | None, Reach]:
    """The block of ``address`` and where it leads; no block: the public internet."""
    for network, reach in _blocks():
        if address.version == network.version and address in network:
            return network, reach
    if address.version == 6 and address not in _GLOBAL_V6:
        return ipaddress.ip_network(address), Reach.SPECIAL  # unassigned
    return None, Reach.PUBLIC


def writes_out(network: Network, address: Address) -> bool:
    """Whether ``network`` has ``address``, and names the block it is in: 0.0.0.0/0 does not name 10.0.0.0/8."""
    if network.version != address.version or address not in network:
        return False
    block, _ = block_of(address)
    return block is None or _within(network, block)


def _within(network: Network, block: Network) -> bool:
    return (
        network.version == block.version and network.prefixlen >= block.prefixlen and (network.network_address in block)
    )
