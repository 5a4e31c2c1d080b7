"""What the relay is told at the beginning of a connection: whose it is, and where it is to go.

A header of the PROXY protocol, version 2 (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt, 2.2), with two
values of its own. Whoever knows the capability of an attempt can use the certificate of its job: a job never learns it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.runtime.egress_relay.errors import RelayFailed

CAPABILITY_BYTES = 32
CAPABILITY_TYPE = 0xE0
AUTHORITY_TYPE = 0xE1
"""Types of values for applications (2.2.7)."""
MAX_AUTHORITY_CHARACTERS = 261
"""A name of 253 characters, a colon, and a port; IPv6 addresses are shorter."""

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_VERSION_2_PROXY = 0x21
_TCP_OVER_IPV4 = 0x11
_ADDRESSES = bytes((127, 0, 0, 1)) * 2 + bytes(4)
"""Nobody looks at them."""
_CAPABILITY = re.compile(rf"[0-9a-f]{{{2 * CAPABILITY_BYTES}}}")
_AUTHORITY = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]{2,45}\]):[1-9][0-9]{0,4}")


def preamble(capability: str, authority: str) -> bytes:
    """The header; raises :class:`RelayFailed` for what is no capability, and no ``host:port`` of a CONNECT request."""
    if not _CAPABILITY.fullmatch(capability):
        raise RelayFailed("not the capability of an attempt")
    if len(authority) > MAX_AUTHORITY_CHARACTERS or not _AUTHORITY.fullmatch(authority):
        raise RelayFailed(f"{authority[:80]!r} is not host:port")
    values = _value(CAPABILITY_TYPE, capability) + _value(AUTHORITY_TYPE, authority)
    body = _ADDRESSES + values
    return _SIGNATURE + struct.pack(">BBH", _VERSION_2_PROXY, _TCP_OVER_IPV4, len(body)) + body


@dataclass(frozen=True, slots=True)
class RelayRoute:
    """The way of one attempt through the relay.

    Attributes:
        capability: known to whoever opens connections for the job, and to the relay.
        locate: where the relay listens now; it may have been started again.
    """

    capability: str = field(repr=False)
    locate: Callable[[], tuple[str, int]] = field(repr=False)

    @property
    def address(self) -> tuple[str, int]:
        """Where to connect to: an IPv4 address of this machine, and a port."""
        return self.locate()

    def preamble(self, authority: str) -> bytes:
        """What to send first; ``authority`` is ``name:port``, ``1.2.3.4:port`` or ``[::1]:port``.

        Raises:
            RelayFailed: it is something else.
        """
        return preamble(self.capability, authority)


def _value(kind: int, text: str) -> bytes:
    data = text.encode("ascii")
    return struct.pack(">BH", kind, len(data)) + data
