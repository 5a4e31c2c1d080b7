"""The latest connections of jobs, each counted once however often it is reported."""

from __future__ import annotations

import msgspec
import pytest

from sluice.core.egress_evidence import EgressRow, EgressVerdict
from sluice.core.metrics import REGISTRY
from sluice.runtime.jobmanager.egress import EgressLedger, ledger as module


def row(number: int, job: str = "j1", **more: object) -> EgressRow:
    made = EgressRow(
        id=f"{number:032x}",
        job_id=job,
        attempt=1,
        process="driver",
        protocol="tcp",
        host="api.example.com",
        address="",
        port=443,
        verdict=EgressVerdict.ALLOWED,
        opened_at=float(number),
    )
    return msgspec.structs.replace(made, **more)


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_row_that_is_reported_again_is_counted_once() -> None:
    ledger = EgressLedger()
    before = counted("sluice_egress_connections_total", verdict="allowed")
    sent = counted("sluice_egress_bytes_total", direction="up")
    ledger.note([row(1, open=True)], {})
    ledger.note([row(1, open=True, bytes_up=5)], {})
    assert [each.bytes_up for each in ledger.rows_of("j1")] == [5]
    assert counted("sluice_egress_connections_total", verdict="allowed") == before
    for _ in range(2):
        ledger.note([row(1, bytes_up=7)], {})
    ledger.note([row(1, open=True)], {})  # overtaken by the row of its end
    assert [(each.bytes_up, each.open) for each in ledger.rows_of("j1")] == [(7, False)]
    assert counted("sluice_egress_connections_total", verdict="allowed") == before + 1
    assert counted("sluice_egress_bytes_total", direction="up") == sent + 7


def test_rows_of_a_job_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JOB_ROWS", 3)
    ledger = EgressLedger()
    ledger.note([row(number) for number in (4, 2, 1, 5, 3)], {})
    assert [int(each.opened_at) for each in ledger.rows_of("j1")] == [1, 3, 5]
    assert ledger.left_out("j1") == 2


def test_the_number_of_jobs_with_rows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JOBS", 2)
    ledger = EgressLedger()
    for number, job in enumerate(["j1", "j2", "j1", "j3"]):
        ledger.note([row(number, job)], {})
    assert (len(ledger.rows_of("j1")), ledger.rows_of("j2"), len(ledger.rows_of("j3"))) == (2, (), 1)
    assert {each.job_id for each in ledger.all_rows()} == {"j1", "j3"}


def test_open_destinations_are_summed_over_all_reporting_taskmanagers() -> None:
    ledger = EgressLedger()
    ledger.note_open("tm-1", 3)
    ledger.note_open("tm-2", 2)
    ledger.note_open("tm-1", 1)
    assert counted("sluice_egress_open") == 3
    ledger.note_open("tm-1", 0)
    ledger.note_open("tm-2", 0)
    assert counted("sluice_egress_open") == 0


def test_the_ledger_reports_since_when_it_has_recorded() -> None:
    now = 100.0
    ledger = EgressLedger(lambda: now)
    assert ledger.since == 100.0
    now = 200.0
    ledger.began_leading()
    assert ledger.since == 200.0


def test_the_ledger_reports_of_which_jobs_it_may_have_dropped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JOBS", 2)
    monkeypatch.setattr(module, "MAX_FORGOTTEN", 2)
    monkeypatch.setattr(module, "MAX_JOB_ROWS", 2)
    ledger = EgressLedger()
    assert not ledger.may_have_forgotten("j1")
    for number, job in enumerate(["j1", "j2", "j3"]):
        ledger.note([row(number, job)], {})
    assert ledger.may_have_forgotten("j1")
    ledger.note([row(9, "j1")], {})  # a late row brings the job back, and not its earlier rows
    assert ledger.may_have_forgotten("j1")
    assert not ledger.may_have_forgotten("j3")
    ledger.note([row(number, "j3") for number in (10, 11, 12)], {})
    assert ledger.may_have_forgotten("j3"), "it had more rows than are kept"
    ledger.note([row(20, "j4"), row(21, "j5")], {})
    assert ledger.may_have_forgotten("j6"), "so many were forgotten that any may be among them"


def test_connections_of_an_earlier_term_do_not_count_as_open() -> None:
    ledger = EgressLedger()
    ledger.note_open("taskmanager/a", 3)
    assert counted("sluice_egress_open") == 3
    ledger.forget_open()
    assert counted("sluice_egress_open") == 0
    ledger.note_open("taskmanager/b", 1)
    assert counted("sluice_egress_open") == 1
