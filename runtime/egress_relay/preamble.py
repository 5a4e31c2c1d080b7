"""The preamble that starts each connection to the relay: which attempt it belongs to, and its destination.

It is a PROXY protocol version 2 header (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt, 2.2) with two
custom TLVs. The capability of an attempt allows using the certificate of its job, so a job never learns it.
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
"""TLV types reserved for applications (2.2.7)."""
MAX_AUTHORITY_CHARACTERS = 261
"""A name of 253 characters, a colon, and a port; IPv6 addresses are shorter."""

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_VERSION_2_PROXY = 0x21
_TCP_OVER_IPV4 = 0x11
_ADDRESSES = bytes((127, 0, 0, 1)) * 2 + bytes(4)
"""Source and destination address; nobody reads them."""
_CAPABILITY = re.compile(rf"[0-9a-f]{{{2 * CAPABILITY_BYTES}}}")
_AUTHORITY = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]{2,45}\]):[1-9][0-9]{0,4}")


def preamble(capability: str, authority: str) -> bytes:
    """The header; raises :class:`RelayFailed` for a malformed capability, or an authority that is not ``host:port``."""
    if not _CAPABILITY.fullmatch(capability):
        raise RelayFailed("the capability of the attempt is malformed")
    if len(authority) > MAX_AUTHORITY_CHARACTERS or not _AUTHORITY.fullmatch(authority):
        raise RelayFailed(f"{authority[:80]!r} is not host:port")
    values = _value(CAPABILITY_TYPE, capability) + _value(AUTHORITY_TYPE, authority)
    body = _ADDRESSES + values
    return _SIGNATURE + struct.pack(">BBH", _VERSION_2_PROXY, _TCP_OVER_IPV4, len(body)) + body


@dataclass(frozen=True, slots=True)
class RelayRoute:
    """The route of one attempt through the relay.


    Attributes:
        capability: known only to the process that opens connections for the job, and to the relay.
        locate: returns where the relay listens now; a restart may change it.
    """

    capability: str = field(repr=False)
    locate: Callable[[], tuple[str, int]] = field(repr=False)

    @property
    def address(self) -> tuple[str, int]:
        """The address of the relay: an IPv4 address of this machine, and a port."""
        return self.locate()

    def preamble(self, authority: str) -> bytes:
        """The bytes to send first; ``authority`` is ``name:port``, ``1.2.3.4:port`` or ``[::1]:port``.


        Raises:
            RelayFailed: ``authority`` has another form.
        """
        return preamble(self.capability, authority)


def _value(kind: int, text: str) -> bytes:
    data = text.encode("ascii")
    return struct.pack(">BH", kind, len(data)) + data
