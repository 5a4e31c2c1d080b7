"""The insider audit without a cluster: its catalogue, what it sends, what it believes, what it reports."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sluice.audit.catalogue import by_id
from sluice.audit.containers import Container
from sluice.audit.insider import CHECKS, Place, Row, Seen, World, canaries, judge, packed, read_rows, report_of
from sluice.audit.insider.live_targets import start_ticks
from sluice.audit.insider.payload import ATTEMPTS, Attempt, Group, Outcome, Target, encode
from sluice.audit.insider.payload.attempt import reached, refused
from sluice.audit.insider.payload.bounded import tried
from sluice.audit.insider.payload.identity import read_own
from sluice.audit.insider.payload.reading import read_any
from sluice.audit.insider.surroundings import Surroundings
from sluice.audit.insider.targets import directories, files, machine
from sluice.audit.model import Kind, Outcome as Verdict, Report, Severity
from sluice.audit.reports import RENDERERS, Format
from sluice.core import Home

NONCE = "0123456789abcdef"
GROUP = Group("TST", severity="high", cwe=(200,), expected="nothing", remedy="none")


def _line(**changes: object) -> str:
    document = {"id": "KEY-01", "place": "driver", "outcome": "refused", "done": "opened", "seen": "ENOENT"} | changes
    return f"SLUICE-INSIDER {NONCE} {json.dumps(document)}"


def _attempt(run: Any) -> Attempt:
    return Attempt("TST-01", "do it", GROUP, run, "high", (200,), "none", seconds=5)


def test_every_attempt_has_a_title_problem_severity_and_references() -> None:
    for check in CHECKS:
        assert check.title.startswith("A job cannot ")
        assert check.problem.startswith("A job can ")
        assert check.severity in Severity
        assert check.references
        assert check.remedy
        assert check.kinds == {Kind.CODE}


def test_no_attempt_has_the_id_of_an_outside_check() -> None:
    assert not {check.id for check in CHECKS} & set(by_id())


def test_the_package_runs_without_sluice(tmp_path: Path) -> None:
    """A user's cluster has Python and Spark, and nothing else."""
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


def test_the_spark_session_is_not_encoded_into_the_package() -> None:
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
def test_a_forged_line_cannot_retract_a_finding(order: tuple[str, str]) -> None:
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
def test_a_malformed_line_is_ignored(line: str) -> None:
    assert read_rows([line], NONCE) == ((), False)


def test_the_output_of_a_job_contains_no_control_characters() -> None:
    rows, _ = read_rows([_line(seen="\x1b[2Jgone\u202e\r")], NONCE)
    assert rows[0].seen.isprintable()


def _report(rows: tuple[Row, ...]) -> Report:
    now = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
    return report_of("a cluster", now, 1.0, rows, job_id="a" * 32, missing="the job ended")


def test_attempts_that_the_job_does_not_report_are_not_examined() -> None:
    rows, _ = read_rows([_line(), _line(id="KEY-02", outcome="reached", seen="64 bytes")], NONCE)
    report = _report(rows)
    results = {(each.check, each.listener): each for each in report.results}
    assert results["KEY-01", "driver"].outcome is Verdict.PASSED
    assert results["KEY-02", "driver"].outcome is Verdict.FINDING
    assert results["KEY-02", "udf"].outcome is Verdict.NOT_EXAMINED
    assert results["KEY-02", "udf"].seen == "the job ended"
    assert len(results) == sum(len(each.places) for each in ATTEMPTS.values())


@pytest.mark.parametrize("format_", list(Format))
def test_every_report_format_contains_the_finding(format_: Format) -> None:
    rows, _ = read_rows([_line(outcome="reached", seen="read <64> of 241 bytes")], NONCE)
    text = RENDERERS[format_](_report(rows))
    assert "KEY-01" in text
    assert "of 241 bytes" in text


def test_sarif_has_the_rules_of_the_attempts() -> None:
    rows, _ = read_rows([_line(outcome="reached")], NONCE)
    run = json.loads(RENDERERS[Format.SARIF](_report(rows)))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [check.id for check in CHECKS]
    assert run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]]["id"] == "KEY-01"


def test_a_killed_attempt_is_refused_and_a_crashed_one_untried() -> None:
    killed = tried(_attempt(lambda _: os.kill(os.getpid(), signal.SIGKILL)), World())
    crashed = tried(_attempt(lambda _: os.kill(os.getpid(), signal.SIGUSR1)), World())
    assert (killed.outcome, crashed.outcome) == (Outcome.REFUSED, Outcome.UNTRIED)


def test_an_error_in_an_attempt_is_untried_and_not_refused() -> None:
    def broken(_: World) -> object:
        raise ValueError("mistake")

    def wrong_call(_: World) -> object:
        raise OSError(22, "Invalid argument")

    def forbidden(_: World) -> object:
        raise PermissionError(13, "Permission denied")

    outcomes = [tried(_attempt(run), World()).outcome for run in (broken, wrong_call, forbidden)]
    assert outcomes == [Outcome.UNTRIED, Outcome.UNTRIED, Outcome.REFUSED]


def test_a_hanging_attempt_is_ended_and_untried(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    hanging = Attempt("TST-01", "wait", GROUP, lambda _: refused("", fifo.read_text()), "high", (200,), "", seconds=0.2)
    assert tried(hanging, World()).outcome is Outcome.UNTRIED


def test_the_output_of_an_attempt_is_truncated() -> None:
    said = tried(_attempt(lambda _: reached("d" * 10_000, "s" * 10_000)), World())
    assert (len(said.done), len(said.seen)) == (600, 600)


def test_the_content_of_a_readable_secret_is_not_reported(tmp_path: Path) -> None:
    secret = tmp_path / "key.pem"
    secret.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    target = Target("key", str(secret))
    said = read_any(World(targets=(target,)), "key")
    assert said.outcome is Outcome.REACHED
    assert "secret" not in said.seen
    assert "private key" in said.seen


def test_a_missing_target_is_refused_and_no_target_at_all_is_untried(tmp_path: Path) -> None:
    gone = Target("key", str(tmp_path / "gone"))
    assert read_any(World(targets=(gone,)), "key").outcome is Outcome.REFUSED
    assert read_any(World(), "nothing of the kind").outcome is Outcome.UNTRIED


def _row(id_: str, place: Place = Place.DRIVER) -> Row:
    return Row(id=id_, place=place, outcome=Outcome.PLANTED, done="laid it out", seen="it is there")


@pytest.mark.parametrize(
    ("id_", "seen", "verdict"),
    [
        ("LNK-01", Seen(read=3), Verdict.PASSED),
        ("LNK-01", Seen(read=3, leaked=("driver.stderr",)), Verdict.FINDING),
        ("LNK-02", Seen(read=3, hung=("driver.jvm.log",)), Verdict.FINDING),
        ("LNK-07", Seen(canary_gone=True), Verdict.FINDING),
        ("LNK-07", Seen(), Verdict.PASSED),
        ("LNK-08", Seen(), Verdict.NOT_EXAMINED),
        ("LNK-08", Seen(left=()), Verdict.PASSED),
        ("LNK-09", Seen(left=("/a/insider-1",)), Verdict.FINDING),
        ("USE-07", Seen(), Verdict.NOT_EXAMINED),
        ("USE-07", Seen(running=frozenset()), Verdict.PASSED),
        ("USE-07", Seen(running=frozenset({Place.DRIVER})), Verdict.FINDING),
        ("USE-07", Seen(running=frozenset({Place.UDF})), Verdict.PASSED),
        ("KEY-01", Seen(), Verdict.NOT_EXAMINED),
    ],
)
def test_traps_planted_by_a_job_are_judged_from_outside(id_: str, seen: Seen, verdict: Verdict) -> None:
    assert judge(_row(id_), seen).outcome is verdict


def test_every_attempt_that_only_plants_a_trap_is_judged() -> None:
    """Attempts with links, and with processes that stay."""
    everything = Seen(left=(), running=frozenset())
    laid_out = [each for each in ATTEMPTS if each.startswith("LNK-") or each == "USE-07"]
    assert all(judge(_row(each), everything).outcome is Verdict.PASSED for each in laid_out)


def test_a_planted_trap_that_was_not_inspected_is_not_examined() -> None:
    report = _report((_row("LNK-01"),))
    (result,) = [each for each in report.results if each.check == "LNK-01"]
    assert result.outcome is Verdict.NOT_EXAMINED


def test_canaries_exist_only_inside_their_context() -> None:
    with canaries(NONCE) as put_out:
        assert put_out.content in Path(put_out.file).read_text()
        assert put_out.content not in repr(put_out)
        assert put_out.content not in str(put_out.targets)
        assert read_any(World(targets=put_out.targets), "marker").outcome is Outcome.REACHED
        (name,) = [each.place for each in put_out.targets if each.kind == "abstract socket"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\0" + name)
        directories = [each for each in put_out.targets if each.kind == "open directory"]
        assert {each.mark for each in directories} == {
            f"{each.path.stat().st_dev}:{each.path.stat().st_ino}" for each in directories
        }
    assert not any(each.path.exists() for each in directories)


def test_the_write_attempt_leaves_no_file_and_needs_the_marked_directory(tmp_path: Path) -> None:
    status = tmp_path.stat()
    real = Target("open directory", str(tmp_path), "shared", f"{status.st_dev}:{status.st_ino}")
    attempt = ATTEMPTS["WRT-24"]
    assert tried(attempt, World(nonce=NONCE, targets=(real,))).outcome is Outcome.REACHED
    assert not list(tmp_path.iterdir())
    other = Target("open directory", str(tmp_path), "shared", "1:1")
    assert tried(attempt, World(nonce=NONCE, targets=(other,))).outcome is Outcome.REFUSED


def test_a_process_with_the_pid_but_not_the_start_time_of_the_target_is_not_reached() -> None:
    kind = "process of the cluster"
    mine = Target(kind, str(os.getpid()), "this", start_ticks(os.getpid()))
    another = Target(kind, str(os.getpid()), "this", "1")
    environment = ATTEMPTS["PRC-01"]
    assert tried(environment, World(targets=(mine,))).outcome is Outcome.REACHED
    assert tried(environment, World(targets=(another,))).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    ("id_", "outcome"), [("PRC-05", Outcome.REACHED), ("PRC-20", Outcome.REACHED), ("PRC-22", Outcome.REACHED)]
)
def test_the_memory_and_files_of_an_own_child_process_are_reached(id_: str, outcome: Outcome) -> None:
    """A control: it shows that a refusal elsewhere is meaningful."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        target = Target("process of the cluster", str(process.pid), "child", start_ticks(process.pid))
        said = tried(ATTEMPTS[id_], World(targets=(target,)))
    assert said.outcome is outcome, said


def test_a_socket_without_access_control_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "rest.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        there = World(targets=(Target("unix socket", str(path), "rest"),))
        assert tried(ATTEMPTS["SOC-01"], there).outcome is Outcome.REACHED
    gone = World(targets=(Target("unix socket", str(tmp_path / "gone"), "rest"),))
    assert tried(ATTEMPTS["SOC-01"], gone).outcome is Outcome.REFUSED


def test_a_plaintext_listener_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        said = tried(ATTEMPTS["NET-07"], World(targets=(Target("port", f"127.0.0.1:{port}", "rpc"),)))
        thread.join()
    assert said.outcome is Outcome.REACHED, said


def test_a_directory_without_the_mark_of_the_target_is_not_the_target(tmp_path: Path) -> None:
    """A sandbox makes empty directories on the way to its mounts."""
    status = tmp_path.stat()
    real = Target("job directory", str(tmp_path), mark=f"{status.st_dev}:{status.st_ino}")
    assert read_any(World(targets=(real,)), "job directory").outcome is Outcome.REACHED
    other = Target("job directory", str(tmp_path), mark="1:1")
    assert read_any(World(targets=(other,)), "job directory").outcome is Outcome.REFUSED


def test_targets_of_a_home_are_listed_without_their_content(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home").create()
    key = home.pki / "authorities" / "internal" / "key.pem"
    key.parent.mkdir(parents=True)
    key.write_text("very secret")
    victim = home.root / "work" / "taskmanager-1" / "jobs" / ("a" * 32) / "executor-1"
    (victim / "identity").mkdir(parents=True)
    (victim / "identity" / "key.pem").write_text("very secret, too")
    around = Surroundings(home, tmp_path, Path(sys.prefix), Path(sys.base_prefix))
    found = [*files(around, "a" * 32), *directories(around), *machine(around)]
    kinds = {each.kind: each for each in found}
    assert kinds["internal authority's key"].place == str(key)
    assert kinds["job key"].path.parent.parent == victim
    assert kinds["job directory"].mark
    assert {"pid", "mnt", "ipc", "uts"} == {each.name for each in found if each.kind == "namespace"}
    assert b"very secret" not in encode(World(targets=tuple(found)))


def test_paths_of_a_container_are_read_below_its_root_and_named_as_inside() -> None:
    container = Container(service="taskmanager-1", project="p", pid=os.getpid(), home="/var/lib/sluice")
    around = Surroundings.of_container(container)
    assert around.inside(around.home.pki) == "/var/lib/sluice/pki"
    assert around.seen("/etc/passwd").read_bytes() == Path("/etc/passwd").read_bytes()
    assert around.prefix == Path(sys.prefix)


def test_the_too_deep_tree_is_planted_in_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tried(ATTEMPTS["LNK-08"], World()).outcome is Outcome.PLANTED
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("insider-")
    shutil.rmtree(left)


@pytest.mark.parametrize("name", ["identity", "identity-of-job"])
def test_the_jobs_own_identity_is_found_beside_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "key.pem").write_text("key")
    (tmp_path / name / "chain.pem").write_text("chain")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert read_own(World()) == (b"key", b"chain")


def test_a_forgery_attempt_without_an_own_identity_is_untried_and_names_the_searched_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, so nothing was refused: the attempt is not examined."""
    monkeypatch.chdir(tmp_path)
    said = tried(ATTEMPTS["FRG-01"], World(targets=(Target("port", "127.0.0.1:1", "rpc"),)))
    assert said.outcome is Outcome.UNTRIED
    assert "no identity of its own is in sight" in said.seen
    assert str(tmp_path) in said.seen


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [(None, Verdict.NOT_EXAMINED), ((), Verdict.PASSED), (("executor 1 is EXITED",), Verdict.FINDING)],
)
def test_lost_slots_of_another_job_are_judged_from_outside(lost: tuple[str, ...] | None, verdict: Verdict) -> None:
    row = Row("SHR-01", Place.DRIVER_JVM, Outcome.PLANTED, "asked for 64 executors", "the job has 3 now")
    assert judge(row, Seen(lost=lost)).outcome is verdict


def test_more_slots_than_a_user_may_have_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ATTEMPTS["SHR-02"]
    assert tried(row, World()).outcome is Outcome.UNTRIED
    for count, outcome in ((4, Outcome.REFUSED), (5, Outcome.REACHED)):
        monkeypatch.setattr("sluice.audit.insider.payload.rows.sharing._granted", [count])
        assert tried(row, World(bounds={"max_slots_per_user": 4})).outcome is outcome


@pytest.mark.parametrize(
    ("answered", "seconds"), [({1}, 2.0), ({1, 7}, 30.0)], ids=["one only", "the one behind the idle ones too"]
)
def test_a_listener_that_is_blocked_by_idle_connections_is_a_finding(
    answered: set[int], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener answers with plain HTTP, which counts as an answer, until it is blocked."""
    module = "sluice.audit.insider.payload.rows.sharing"
    monkeypatch.setattr(f"{module}.IDLE_CONNECTIONS", 5)
    monkeypatch.setattr(f"{module}.ANSWER_SECONDS", seconds)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:

        def serve() -> None:
            with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
                for number in itertools.count(1):
                    client = opened.enter_context(listening.accept()[0])
                    if number in answered:
                        client.recv(4096)
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        target = Target("port", f"127.0.0.1:{listening.getsockname()[1]}", "rpc")
        said = tried(ATTEMPTS["SHR-03"], World(targets=(target,)))
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert said.outcome is (Outcome.REACHED if len(answered) == 1 else Outcome.REFUSED), said
