"""The insider audit without a cluster: its catalogue, what it sends, what it believes, what it reports."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sluice.audit.catalogue import by_id
from sluice.audit.insider import CHECKS, Place, Row, World, packed, read_rows, report_of
from sluice.audit.insider.payload import ATTEMPTS, Attempt, Group, Outcome, Target, encode
from sluice.audit.insider.payload.attempt import reached, refused
from sluice.audit.insider.payload.bounded import tried
from sluice.audit.insider.payload.reading import read_any
from sluice.audit.model import Kind, Outcome as Verdict, Report, Severity
from sluice.audit.reports import RENDERERS, Format

NONCE = "0123456789abcdef"
GROUP = Group("TST", severity="high", cwe=(200,), expected="nothing", remedy="none")


def _line(**changes: object) -> str:
    document = {"id": "KEY-01", "place": "driver", "outcome": "refused", "done": "opened", "seen": "ENOENT"} | changes
    return f"SLUICE-INSIDER {NONCE} {json.dumps(document)}"


def _attempt(run: Any) -> Attempt:
    return Attempt("TST-01", "do it", GROUP, run, "high", (200,), "none", seconds=5)


def test_every_attempt_says_what_it_is_about() -> None:
    for check in CHECKS:
        assert check.title.startswith("A job cannot ")
        assert check.problem.startswith("A job can ")
        assert check.severity in Severity
        assert check.references
        assert check.remedy
        assert check.kinds == {Kind.CODE}


def test_no_attempt_has_the_id_of_a_check_of_the_audit_from_outside() -> None:
    assert not {check.id for check in CHECKS} & set(by_id())


def test_the_package_runs_without_sluice(tmp_path: Path) -> None:
    """On the cluster of a user there is Python and Spark, and nothing else."""
    files = packed(World(nonce=NONCE, targets=(Target("a", "/b", "c"),), victim="v"), tmp_path)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sluice_insider.rows import load\n"
        "from sluice_insider.world import read\n"
        "from sluice_insider.attempt import ATTEMPTS\n"
        "import sluice_insider.main\n"
        "load(); print(read().targets[0].place, read().victim, len(ATTEMPTS), 'sluice' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(files.package)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["/b", "v", str(len(ATTEMPTS)), "False"], done.stderr


def test_the_package_is_the_same_for_the_same_world(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for each in (first, second):
        each.mkdir()
    world = World(nonce=NONCE)
    assert packed(world, first).package.read_bytes() == packed(world, second).package.read_bytes()
    names = zipfile.ZipFile(first / "sluice_insider.zip").namelist()
    assert all(name.startswith("sluice_insider/") for name in names)


def test_pipeline_and_victim_are_modules_of_the_wheel() -> None:
    assert importlib.util.find_spec("sluice.audit.insider.victim") is not None
    assert importlib.util.find_spec("sluice.audit.insider.pipeline") is not None


def test_a_session_is_never_sent() -> None:
    assert b"spark" not in encode(World(spark=object()))


def test_rows_are_read_from_the_marked_lines_of_this_run() -> None:
    lines = [
        "noise",
        _line(),
        _line().replace(NONCE, "f" * 16),
        _line(place="udf", outcome="reached"),
        "SLUICE-INSIDER",
    ]
    rows, ended = read_rows(lines, NONCE)
    assert [(row.place, row.outcome) for row in rows] == [
        (Place.DRIVER, Outcome.REFUSED),
        (Place.UDF, Outcome.REACHED),
    ]
    assert not ended
    assert read_rows([f"SLUICE-INSIDER {NONCE} end"], NONCE) == ((), True)


@pytest.mark.parametrize("order", [("reached", "refused"), ("refused", "reached"), ("untried", "reached")])
def test_a_forged_line_takes_no_finding_back(order: tuple[str, str]) -> None:
    rows, _ = read_rows([_line(outcome=each) for each in order], NONCE)
    assert [row.outcome for row in rows] == [Outcome.REACHED]


@pytest.mark.parametrize(
    "line",
    [
        _line(id="KEY-99"),
        _line(place="moon"),
        _line(place="driver-jvm"),
        _line(outcome="passed"),
        _line(extra=1),
        _line(seen="x" * 5000),
        _line(seen=["x"]),
        _line(seconds=-1),
        _line()[:-3],
        f"SLUICE-INSIDER {NONCE} " + "[" * 10_000,
        f"SLUICE-INSIDER {NONCE} \udcff",
        _line() + " " * (17 << 10),
    ],
)
def test_a_malformed_line_counts_for_nothing(line: str) -> None:
    assert read_rows([line], NONCE) == ((), False)


def test_what_a_job_tells_cannot_act_on_a_terminal() -> None:
    rows, _ = read_rows([_line(seen="\x1b[2Jgone\u202e\r")], NONCE)
    assert rows[0].seen.isprintable()


def _report(rows: tuple[Row, ...]) -> Report:
    now = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
    return report_of("a cluster", now, 1.0, rows, job_id="a" * 32, missing="the job ended")


def test_what_the_job_does_not_tell_is_not_examined() -> None:
    rows, _ = read_rows([_line(), _line(id="KEY-02", outcome="reached", seen="64 bytes")], NONCE)
    report = _report(rows)
    results = {(each.check, each.listener): each for each in report.results}
    assert results["KEY-01", "driver"].outcome is Verdict.PASSED
    assert results["KEY-02", "driver"].outcome is Verdict.FINDING
    assert results["KEY-02", "udf"].outcome is Verdict.NOT_EXAMINED
    assert results["KEY-02", "udf"].seen == "the job ended"
    assert len(results) == sum(len(each.places) for each in ATTEMPTS.values())


@pytest.mark.parametrize("format_", list(Format))
def test_every_format_tells_of_a_finding(format_: Format) -> None:
    rows, _ = read_rows([_line(outcome="reached", seen="read <64> of 241 bytes")], NONCE)
    text = RENDERERS[format_](_report(rows))
    assert "KEY-01" in text
    assert "of 241 bytes" in text


def test_sarif_has_the_rules_of_the_attempts() -> None:
    rows, _ = read_rows([_line(outcome="reached")], NONCE)
    run = json.loads(RENDERERS[Format.SARIF](_report(rows)))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [check.id for check in CHECKS]
    assert run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]]["id"] == "KEY-01"


def test_an_attempt_that_dies_is_told_of() -> None:
    killed = tried(_attempt(lambda _: os.kill(os.getpid(), signal.SIGKILL)), World())
    crashed = tried(_attempt(lambda _: os.kill(os.getpid(), signal.SIGUSR1)), World())
    assert (killed.outcome, crashed.outcome) == (Outcome.REFUSED, Outcome.UNTRIED)


def test_a_mistake_of_the_attempt_is_no_pass() -> None:
    def broken(_: World) -> object:
        raise ValueError("mistake")

    def wrong_call(_: World) -> object:
        raise OSError(22, "Invalid argument")

    def forbidden(_: World) -> object:
        raise PermissionError(13, "Permission denied")

    outcomes = [tried(_attempt(run), World()).outcome for run in (broken, wrong_call, forbidden)]
    assert outcomes == [Outcome.UNTRIED, Outcome.UNTRIED, Outcome.REFUSED]


def test_a_hanging_attempt_ends(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    hanging = Attempt("TST-01", "wait", GROUP, lambda _: refused("", fifo.read_text()), "high", (200,), "", seconds=0.2)
    assert tried(hanging, World()).outcome is Outcome.UNTRIED


def test_an_attempt_says_little() -> None:
    said = tried(_attempt(lambda _: reached("d" * 10_000, "s" * 10_000)), World())
    assert (len(said.done), len(said.seen)) == (600, 600)


def test_a_secret_that_can_be_read_is_not_told(tmp_path: Path) -> None:
    secret = tmp_path / "key.pem"
    secret.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    target = Target("key", str(secret))
    said = read_any(World(targets=(target,)), "key")
    assert said.outcome is Outcome.REACHED
    assert "secret" not in said.seen
    assert "private key" in said.seen


def test_a_target_that_is_gone_inside_is_refused_and_no_target_is_no_pass(tmp_path: Path) -> None:
    gone = Target("key", str(tmp_path / "gone"))
    assert read_any(World(targets=(gone,)), "key").outcome is Outcome.REFUSED
    assert read_any(World(), "nothing of the kind").outcome is Outcome.UNTRIED
