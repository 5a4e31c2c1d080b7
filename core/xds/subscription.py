"""One kind of resources on one stream of the xDS protocol, state of the world. No I/O.

Source: https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol, "ACK and NACK semantics".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.core.printable import printable
from sluice.core.xds.messages import CLUSTER, LISTENER, RESPONSE, Message, encode, message_class
from sluice.core.xds.resources import Resources

MAX_NAMES = 256
"""Most resources of one kind on one stream."""
MAX_REASON_CHARACTERS = 1000

_WILDCARDS = frozenset({CLUSTER, LISTENER})
"""Kinds of which a client that names no resources gets all resources."""


class Heard(enum.Enum):
    """The meaning of a request."""

    SUBSCRIBED = "subscribed"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    STALE = "stale"
    """An answer to a response that a later one has replaced."""


@dataclass(slots=True)
class Subscription:
    """The names that a client subscribes to, and the response that was sent last."""

    kind: str
    names: tuple[str, ...] = ()
    sent_version: str = ""
    """Version of the response that was sent last."""
    rejected: str = ""
    """Why Envoy rejected it; empty when Envoy accepted it or has not answered yet."""
    _nonce: int = 0
    _sent: dict[str, bytes] = field(default_factory=dict)
    _due: bool = True

    def hear(self, request: Message) -> Heard:
        """Process a request for this kind. The caller limits the number of names."""
        names = tuple(dict.fromkeys(request.resource_names))
        if request.response_nonce and request.response_nonce != str(self._nonce):
            return Heard.STALE
        if names != self.names:
            self.names = names
            self._due = True
        if not request.response_nonce:
            self._due = True
            return Heard.SUBSCRIBED
        if request.HasField("error_detail"):
            self.rejected = readable(request.error_detail.message) or "no reason given"
            return Heard.REJECTED
        self.rejected = ""
        return Heard.ACCEPTED

    def answer(self, resources: Resources | None) -> bytes | None:
        """The next response, or None when nothing has changed. A rejected response is not sent again."""
        if resources is None:
            return None
        everything = not self.names and self.kind in _WILDCARDS
        wanted = resources.by_name.keys() if everything else self.names
        selected = {name: resources.by_name[name] for name in wanted if name in resources.by_name}
        if selected == self._sent and not self._due:
            return None
        if not selected and not everything:
            return None  # not there yet: Envoy waits, or keeps what it has
        self._nonce += 1
        self._sent, self._due, self.sent_version = selected, False, resources.version
        return response(self.kind, selected, resources.version, str(self._nonce))


def response(kind: str, resources: Mapping[str, bytes], version: str, nonce: str = "") -> bytes:
    """A DiscoveryResponse with these encoded resources."""
    message = message_class(RESPONSE)(version_info=version, type_url=kind, nonce=nonce)
    for data in resources.values():
        message.resources.add(type_url=kind, value=data)
    return encode(message)


def readable(text: str) -> str:
    """``text`` bounded and without control characters. Keeps both ends: Envoy puts its reasons at the end."""
    half = MAX_REASON_CHARACTERS // 2
    bounded = text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"
    return " ".join(printable(bounded, " ").split())
