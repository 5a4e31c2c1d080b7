"""Writes the connections of a driver or an executor into the journal of its TaskManager."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from sluice.runtime.egress import BoxId, Destination, EgressJournal, OpenConnection, TooManyDestinations
from sluice.runtime.job_network import WouldRefuse
from sluice.runtime.sandbox.network import Connection, Refusal, Traffic
from sluice.runtime.taskmanager.networks.network_owner import NetworkOwner

_LOG = logging.getLogger(__name__)

_ENDING = ThreadPoolExecutor(4, thread_name_prefix="end-egress")
"""Ends connections of several networks in parallel: each call waits for its broker."""


class Ending(Protocol):
    """The part of a network that ends connections."""

    def end(self, wanted: Callable[[Connection], bool], reason: str) -> int:
        """End all wanted connections, wait for that, and return their number."""
        ...


class JournalRows:
    """Records the connections of one owner, and ends the owner if a connection cannot be ended. No method blocks."""

    def __init__(self, journal: EgressJournal, owner: NetworkOwner) -> None:
        self._journal = journal
        self._owner = owner
        self._box = BoxId(owner.job_id, owner.attempt, owner.process)
        self._lock = threading.Lock()
        self._open: dict[int, OpenConnection] = {}
        self._traffic: dict[int, Traffic] = {}
        self._ending: dict[int, str] = {}
        self._network: Ending | None = None

    def attach(self, network: Ending) -> None:
        """Set the network whose rows these are, before its first connection."""
        self._network = network

    def opened(self, connection: Connection) -> None:
        """Record the connection, or end it if the journal is full."""
        number, note = connection.id, connection.to.note
        try:
            written = self._journal.opened(
                self._box,
                _destination(connection),
                end=lambda reason: self._end(number, reason),
                measure=lambda: self._measured(number),
                would_refuse=note.reason if isinstance(note, WouldRefuse) else "",
            )
        except TooManyDestinations as error:
            _LOG.warning("ending a connection of job %s: %s", self._owner.job_id, error.what)
            self._journal.refused(self._box, _destination(connection), "too_many_connections")
            self._end(number, "too_many_connections")
            return
        with self._lock:
            self._open[number] = written

    def moved(self, connection: Connection, traffic: Traffic) -> None:
        """Remember the byte counts of the connection."""
        with self._lock:
            self._traffic[connection.id] = traffic

    def closed(self, connection: Connection, traffic: Traffic, seconds: float, reason: str) -> None:  # noqa: ARG002
        """Record the end of the connection, whose start is in the journal."""
        with self._lock:
            self._traffic[connection.id] = traffic
            written = self._open.pop(connection.id, None)
        if written is not None:
            written.closed(reason)
        with self._lock:
            self._traffic.pop(connection.id, None)
            self._ending.pop(connection.id, None)

    def refused(self, refusal: Refusal) -> None:
        """Record the refusal."""
        to = Destination(
            refusal.name, "" if refusal.name else str(refusal.address), max(0, refusal.port), refusal.protocol
        )
        self._journal.refused(self._box, to, refusal.reason, count=max(1, refusal.count))

    def stuck(self, connection: Connection) -> None:
        """End the owner of the network, because it hides this connection from the broker."""
        self._owner.end(f"it hides a connection to {connection.connect.name or connection.connect.address}")

    def _measured(self, number: int) -> tuple[int, int]:
        with self._lock:
            traffic = self._traffic.get(number, Traffic())
        return traffic.sent, traffic.received

    def _end(self, number: int, reason: str) -> None:
        """End a connection in a thread, together with all others that are due at that time."""
        with self._lock:
            first = not self._ending
            self._ending[number] = reason
        if first:
            _ENDING.submit(self._end_all)

    def _end_all(self) -> None:
        network = self._network
        while network is not None:
            with self._lock:
                ending, self._ending = self._ending, {}
            if not ending:
                return
            reason = next(iter(ending.values()))
            try:
                network.end(partial(_is_one, frozenset(ending)), reason)
            except Exception:  # noqa: BLE001  nobody awaits this thread; fail closed
                _LOG.exception("connections of job %s cannot be ended", self._owner.job_id)
                self._owner.end("its connections cannot be ended")


def _is_one(numbers: frozenset[int], connection: Connection) -> bool:
    return connection.id in numbers


def _destination(connection: Connection) -> Destination:
    asked = connection.connect
    return Destination(asked.name or "", "" if asked.name else str(asked.address), asked.port)
