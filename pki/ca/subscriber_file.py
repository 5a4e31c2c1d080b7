"""``<pki>/ca/followers….json``: trust subscribers on other machines, for rotations and for the next ``ca`` process.

Each ``ca`` process writes its own file: soon after a change of anything but times, otherwise rarely. If an identity has
asked several authorities, the latest request counts.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.core import Clock, StoreError, make_private_directory, read_secret, remove_leftovers, utc_now, write_secret
from sluice.pki.ca.address import DEFAULT_NAME, MAX_AUTHORITIES
from sluice.pki.ca.protocol import MAX_TRUST_REQUEST_BYTES
from sluice.pki.ca.trust_subscribers import MAX_SUBSCRIBERS, SubscriberRecord, TrustSubscriber, TrustSubscribers
from sluice.pki.ledger import ledger_path
from sluice.pki.x509 import DAMAGED_JSON

_LOG = logging.getLogger(__name__)

MAX_RECORD_BYTES = MAX_SUBSCRIBERS * (MAX_TRUST_REQUEST_BYTES + (4 << 10))
MAX_FILES = 4 * MAX_AUTHORITIES
"""Most files that are read: of authorities that run, and of some that had other names."""
WRITE_SECONDS = 10.0
"""How old the times in the file may be."""


def subscribers_path(pki: Path, name: str = DEFAULT_NAME) -> Path:
    """The file with the subscribers of the authority ``name``."""
    return ledger_path(pki).parent / ("followers.json" if name == DEFAULT_NAME else f"followers-{name}.json")


def read_subscribers(pki: Path) -> SubscriberRecord:
    """The subscribers that the ``ca`` processes of this home have recorded; none when there is no file.

    Raises:
        StoreError: one of their files is damaged, or others can read it.
    """
    directory = ledger_path(pki).parent
    paths = [*directory.glob("followers.json"), *sorted(directory.glob("followers-*.json"))]
    if len(paths) > MAX_FILES:
        raise StoreError(f"{directory} has {len(paths)} files of trust subscribers", "remove those of former names")
    return latest([_read(path) for path in paths])


def latest(records: Sequence[SubscriberRecord]) -> SubscriberRecord:
    """Merge the records of several authorities: the latest request of each identity."""
    known: dict[str, TrustSubscriber] = {}
    for each in (one for record in records for one in record.subscribers):
        if each.identity not in known or known[each.identity].heard_at < each.heard_at:
            known[each.identity] = each
    incomplete = [record.incomplete_at for record in records if record.incomplete_at is not None]
    if len(known) > MAX_SUBSCRIBERS:
        raise StoreError(f"there are {len(known)} trust subscribers", f"at most {MAX_SUBSCRIBERS} are possible")
    return SubscriberRecord(subscribers=tuple(known.values()), incomplete_at=max(incomplete, default=None))


def _read(path: Path) -> SubscriberRecord:
    if not path.exists():
        return SubscriberRecord()
    try:
        return msgspec.json.decode(read_secret(path, MAX_RECORD_BYTES), type=SubscriberRecord)
    except DAMAGED_JSON as error:
        raise StoreError(f"{path} is damaged: {error}", "start the ca process again: it makes a new one") from error


class SubscriberFile:
    """Keeps the file up to date with the ``subscribers`` of this process; for one thread."""

    def __init__(self, pki: Path, name: str = DEFAULT_NAME, *, clock: Clock = utc_now) -> None:
        self._path = subscribers_path(pki, name)
        self._clock = clock
        self._written_at: dt.datetime | None = None
        self._changes = 0
        self._written: SubscriberRecord | None
        loaded, self._written = self._load()
        self.subscribers = TrustSubscribers(loaded, clock=clock)
        """The subscribers, at first those of the file."""

    def keep(self, *, at_once: bool = False) -> bool:
        """Write changes if it is time to; returns whether it wrote.

        Raises:
            StoreError: it cannot be written; the next call tries again.
        """
        record, changes = self.subscribers.record()
        now = self._clock()
        waited = self._written_at is None or not 0 <= (now - self._written_at).total_seconds() < WRITE_SECONDS
        if record == self._written or not (at_once or changes != self._changes or waited):
            return False
        directory = make_private_directory(self._path.parent)
        remove_leftovers(directory, self._path.name)
        write_secret(self._path, msgspec.json.encode(record) + b"\n")
        self._written, self._written_at, self._changes = record, now, changes
        return True

    def _load(self) -> tuple[SubscriberRecord, SubscriberRecord | None]:
        """The initial record, and the content of the file; None: nothing readable."""
        try:
            found = _read(self._path)
        except StoreError as error:
            # Running subscribers report again at once; until all have had time to, the record is marked incomplete.
            _LOG.error("the record of trust subscribers is lost: %s", error)
            return SubscriberRecord(incomplete_at=self._clock()), None
        return found, found
