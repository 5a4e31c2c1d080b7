"""Which workloads were attested in turn under the same identity."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec
import pytest

from sluice.pki.ledger import successions
from sluice.pki.ledger.file import Ledger
from sluice.pki.ledger.records import IssuanceKind, LedgerRecord
from sluice.pki.ledger.successions import Successions
from sluice.pki.x509.profiles import AuthorityKind

INTERNAL, EDGE = AuthorityKind.INTERNAL, AuthorityKind.EDGE
WORKER = "spiffe://td/taskmanager/tm-0"


def enrolled(uid: str, identity: str = WORKER, kind: IssuanceKind = "enrolment") -> LedgerRecord:
    """Return an enrolment record of the pod with this uid."""
    return LedgerRecord(event="issued", kind=kind, identity=identity, serial="1", requester=f"pod:n/s/p/{uid}")


def test_a_workload_counts_as_succeeded_once_another_is_attested_under_its_identity() -> None:
    known = Successions()
    for uid in ("a", "a", "b"):
        known.take(enrolled(uid))
    assert [known.succeeded(INTERNAL, WORKER, uid) for uid in ("a", "b", "c")] == [True, False, False]
    assert not known.succeeded(EDGE, WORKER, "a")
    assert not known.succeeded(INTERNAL, "spiffe://td/taskmanager/tm-1", "a")


def test_renewals_tokens_and_refusals_do_not_count_as_successions() -> None:
    known = Successions()
    known.take(enrolled("a"))
    known.take(LedgerRecord(event="issued", kind="renewal", identity=WORKER, serial="2", requester=WORKER))
    known.take(LedgerRecord(event="issued", kind="enrolment", identity=WORKER, serial="3", requester="token:b"))
    known.take(LedgerRecord(event="refused", kind="renewal", identity=WORKER, serial="1", requester="pod:n/s/p/b"))
    assert not known.succeeded(INTERNAL, WORKER, "a")


def test_edge_enrolments_have_successions_separate_from_internal_ones() -> None:
    known = Successions()
    known.take(enrolled("a", kind="edge-enrolment"))
    known.take(enrolled("b", kind="edge-enrolment"))
    assert known.succeeded(EDGE, WORKER, "a")
    assert not known.succeeded(INTERNAL, WORKER, "a")


def test_successions_are_known_after_the_ledger_is_reopened(tmp_path: Path) -> None:
    def now() -> dt.datetime:
        return dt.datetime(2030, 1, 1, tzinfo=dt.UTC)

    path = tmp_path / "ca" / "ledger"
    first = Ledger(path, clock=now)
    for uid in ("a", "b"):
        first.append(msgspec.structs.replace(enrolled(uid), not_after="2030-01-02T00:00:00Z"))
    first.close()
    again = Ledger(path, clock=now)
    assert again.successions.succeeded(INTERNAL, WORKER, "a")
    again.close()


def test_the_number_of_remembered_successions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successions, "MAX_REMEMBERED", 3)
    known = Successions()
    for uid in "abcdef":
        known.take(enrolled(uid))
    assert [known.succeeded(INTERNAL, WORKER, uid) for uid in "abcdef"] == [False, False, True, True, True, False]
