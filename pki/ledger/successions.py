"""The order of attested holders of each name, so that an earlier one cannot come back.

No I/O. A pod of a StatefulSet has the name of its predecessor. The API server refuses the tokens of a deleted pod, but
only after some seconds, because it caches. Meanwhile the old pod must not supersede its successor.
"""

from __future__ import annotations

from collections import OrderedDict

from sluice.pki.ledger.records import LedgerRecord, side_of
from sluice.pki.x509 import AuthorityKind

MAX_REMEMBERED = 50_000
"""Most remembered names, and earlier holders; the oldest are forgotten first."""
ATTESTED = "pod:"
"""Prefix of attested requesters, whose last part is unique."""
_ENROLMENTS = frozenset({"enrolment", "edge-enrolment"})


class Successions:
    """The holders of each name, fed with the records of a ledger in order."""

    def __init__(self) -> None:
        self._holders: OrderedDict[tuple[AuthorityKind, str], str] = OrderedDict()
        self._earlier: OrderedDict[tuple[AuthorityKind, str, str], None] = OrderedDict()

    def take(self, record: LedgerRecord) -> None:
        """Process a record of an enrolment."""
        side = side_of(record)
        if side is None or record.kind not in _ENROLMENTS or not record.requester.startswith(ATTESTED):
            return
        key, instance = (side, record.identity), record.requester.rpartition("/")[2]
        before = self._holders.pop(key, instance)
        self._holders[key] = instance
        if before != instance:
            self._earlier[*key, before] = None
        for remembered in (self._holders, self._earlier):
            if len(remembered) > MAX_REMEMBERED:
                remembered.popitem(last=False)

    def succeeded(self, side: AuthorityKind, identity: str, instance: str) -> bool:
        """Whether another one has enrolled as ``identity`` after ``instance`` did."""
        return (side, identity, instance) in self._earlier
