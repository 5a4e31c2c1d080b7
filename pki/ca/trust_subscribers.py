"""Processes on other machines that subscribe to trust, and the trust that they report to have loaded. No I/O.

Each trust request contains such a report (``TrustRequest``). The reports only decide how far a rotation may go: a
process that lies cuts off only itself, and none can report for another.
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
"""Most identities that are remembered; those with an expired certificate are dropped first."""

_Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]


class TrustSubscriber(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One identity and its latest request.

    ``serial`` (hexadecimal) and ``not_after`` are of its certificate then, ``address`` is its origin. ``in_use`` and
    ``unreadable`` are from the request.
    """

    identity: Annotated[str, msgspec.Meta(max_length=2048)]
    heard_at: _Time
    address: Annotated[str, msgspec.Meta(max_length=64)]
    serial: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,40}\Z")]
    not_after: _Time
    in_use: Annotated[tuple[TrustReport, ...], msgspec.Meta(max_length=MAX_TOLD)]
    unreadable: Annotated[int, msgspec.Meta(ge=0)]


class SubscriberRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All subscribers. ``incomplete_at``: when one was last left out, or earlier ones were lost."""

    subscribers: Annotated[tuple[TrustSubscriber, ...], msgspec.Meta(max_length=MAX_SUBSCRIBERS)] = msgspec.field(
        default=(), name="followers"
    )
    incomplete_at: _Time | None = None


class TrustSubscribers:
    """Remembers the latest request of each identity; thread-safe."""

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
        """Record the request of ``peer``, which connected from ``address`` with ``certificate``.

        When too many are known already, it is left out, and the record says that it is not complete.

        Raises:
            PeerRefused: a report is of another identity.
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
        """The subscribers with unexpired certificates, and a number that grows when anything but a time changes."""
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
    """The identities whose certificate has expired."""
    return [each.identity for each in subscribers if each.not_after < now]
