"""Processes on other machines that subscribe to trust, and the trust that they report to have loaded. No I/O.

Each question about trust comes with it (``TrustRequest``). It decides about nothing but how far a
rotation may go: who lies about itself is cut off by its own lie, and nobody can speak for another.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable
from typing import Annotated

import msgspec
from cryptography import x509

from sluice.core import Clock, PeerRefused, utc_now
from sluice.pki.ca.protocol import MAX_TOLD, TrustRequest
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.trust import TrustReport

MAX_SUBSCRIBERS = 2048
"""Most identities that are remembered; those whose certificate has expired make room."""

_Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]


class TrustSubscriber(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One identity: the last question it asked.

    ``serial`` (hexadecimal) and ``not_after`` are of the certificate that proved it then, ``address`` is where it came
    from. ``in_use`` and ``unreadable`` are as it told them.
    """

    identity: Annotated[str, msgspec.Meta(max_length=2048)]
    heard_at: _Time
    address: Annotated[str, msgspec.Meta(max_length=64)]
    serial: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,40}\Z")]
    not_after: _Time
    in_use: Annotated[tuple[TrustReport, ...], msgspec.Meta(max_length=MAX_TOLD)]
    unreadable: Annotated[int, msgspec.Meta(ge=0)]


class SubscriberRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of them. ``incomplete_at``: when one was last left out, or all before were lost."""

    subscribers: Annotated[tuple[TrustSubscriber, ...], msgspec.Meta(max_length=MAX_SUBSCRIBERS)] = msgspec.field(
        default=(), name="followers"
    )
    incomplete_at: _Time | None = None


class TrustSubscribers:
    """Remembers the last question of each identity; for several threads."""

    def __init__(
        self, record: SubscriberRecord | None = None, *, clock: Clock = utc_now, most: int = MAX_SUBSCRIBERS
    ) -> None:
        record = record or SubscriberRecord()
        self._known = {each.identity: each for each in record.subscribers}
        self._incomplete_at = record.incomplete_at
        self._clock = clock
        self._most = most
        self._changes = 0
        self._lock = threading.Lock()

    def heard(self, peer: SpiffeId, certificate: x509.Certificate, address: str, asked: TrustRequest) -> None:
        """Take in what ``peer`` told over a connection from ``address`` that it proved with ``certificate``.

        When too many are known already, it is left out, and the record says that it is not complete.

        Raises:
            PeerRefused: a report is of somebody else.
        """
        name = str(peer)
        if any(report.identity != name for report in asked.in_use):
            raise PeerRefused(f"{name} reports for another identity", "each reports for itself")
        now = self._clock()
        with self._lock:
            before = self._known.get(name)
            if before is None and not self._has_room(now):
                self._incomplete_at = now
                self._changes += 1
                return
            subscriber = TrustSubscriber(
                identity=name,
                heard_at=now,
                address=address[:64],
                serial=f"{certificate.serial_number:x}",
                not_after=certificate.not_valid_after_utc,
                in_use=asked.in_use,
                unreadable=asked.unreadable,
            )
            self._known[name] = subscriber
            if before is None or msgspec.structs.replace(before, heard_at=now) != subscriber:
                self._changes += 1

    def record(self) -> tuple[SubscriberRecord, int]:
        """All whose certificate has not expired; and a number that changes with more than the time they were heard."""
        with self._lock:
            self._forget_expired(self._clock())
            return SubscriberRecord(
                subscribers=tuple(self._known.values()), incomplete_at=self._incomplete_at
            ), self._changes

    def _has_room(self, now: dt.datetime) -> bool:
        if len(self._known) >= self._most:
            self._forget_expired(now)
        return len(self._known) < self._most

    def _forget_expired(self, now: dt.datetime) -> None:
        for name in expired(self._known.values(), now):
            del self._known[name]


def expired(subscribers: Iterable[TrustSubscriber], now: dt.datetime) -> list[str]:
    """The identities of those whose certificate does not count any more."""
    return [each.identity for each in subscribers if each.not_after < now]
