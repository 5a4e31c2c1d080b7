"""``sluice doctor``: each possible defect of a machine is found, named and given a remedy."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli.doctor.machine_checks import MEBIBYTE, Demand, machine_findings
from sluice.cli.doctor.machine_facts import (
    Directory,
    MachineFacts,
    Port,
    Program,
    read_machine,
)
from sluice.cli.main import app
from sluice.core import EgressMode
from sluice.pki.inspect.findings import Severity
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel

NOON = 1_800_000_000.0
DEMAND = Demand(processes=8, slots=4, slot_memory=768 * MEBIBYTE, driver_memory=768 * MEBIBYTE, slot_cores=1)
FIT = MachineFacts(
    system="Linux",
    python=(3, 11),
    java=Program("Java 17"),
    spark=Program("Spark 4.3.0"),
    envoy=Program("Envoy 1.40.0"),
    sandbox=Program("sandbox: bubblewrap (/usr/bin/bwrap), user namespaces"),
    home=Directory(Path("/srv/cluster"), 100_000 * MEBIBYTE, 1_000_000, writable=True, mode=0o700),
    temporary=Directory(Path("/scratch"), 100_000 * MEBIBYTE, 1_000_000, writable=True, mode=0o1777),
    ports=(Port("gateway.port", "127.0.0.1", 8443),),
    cores=8,
    memory=32_000 * MEBIBYTE,
    memory_available=30_000 * MEBIBYTE,
    open_files_soft=65_536,
    open_files_hard=1_048_576,
    now=NOON,
    clock_synchronized=True,
    newest_source=NOON - 86_400,
    localhost=("127.0.0.1", "::1"),
)
BROKEN = [
    ("platform", Severity.ERROR, {"system": "Darwin"}),
    ("python", Severity.ERROR, {"python": (3, 10)}),
    ("java", Severity.ERROR, {"java": Program(error="there is no java command", remedy="install one")}),
    ("spark", Severity.ERROR, {"spark": Program(error="pyspark is not installed", remedy="pip install sluice")}),
    ("envoy", Severity.ERROR, {"envoy": Program(error="Envoy does not run", remedy="install again")}),
    ("sandbox", Severity.ERROR, {"sandbox": Program(error="the sandbox does not work", remedy="ask the kernel")}),
    ("isolation-none", Severity.WARNING, {"isolated": False}),
    ("egress-off", Severity.WARNING, {"egress": EgressMode.OFF}),
    ("warm-jvms", Severity.WARNING, {"warm": True, "root": False}),
    ("home-not-writable", Severity.ERROR, {"home": replace(FIT.home, writable=False)}),
    ("home-disk", Severity.ERROR, {"home": replace(FIT.home, free_bytes=511 * MEBIBYTE)}),
    ("home-disk", Severity.WARNING, {"home": replace(FIT.home, free_bytes=513 * MEBIBYTE)}),
    ("home-inodes", Severity.WARNING, {"home": replace(FIT.home, free_inodes=9_999)}),
    ("home-permissions", Severity.WARNING, {"home": replace(FIT.home, mode=0o750)}),
    ("temporary-not-writable", Severity.ERROR, {"temporary": replace(FIT.temporary, writable=False)}),
    ("temporary-disk", Severity.WARNING, {"temporary": replace(FIT.temporary, free_bytes=4095 * MEBIBYTE)}),
    ("temporary-noexec", Severity.WARNING, {"temporary": replace(FIT.temporary, noexec=True)}),
    ("port", Severity.ERROR, {"ports": (Port("gateway.port", "127.0.0.1", 8443, "in use"),)}),
    ("memory", Severity.WARNING, {"memory_available": 1_000 * MEBIBYTE}),
    ("memory", Severity.ERROR, {"memory": 2_000 * MEBIBYTE, "memory_available": 1_000 * MEBIBYTE}),
    ("cores", Severity.NOTE, {"cores": 2}),
    ("open-files", Severity.WARNING, {"open_files_soft": 1024}),
    ("open-files", Severity.ERROR, {"open_files_soft": 512, "open_files_hard": 512}),
    ("clock-behind", Severity.ERROR, {"now": NOON - 90_000}),
    ("clock-unsynchronized", Severity.NOTE, {"clock_synchronized": False}),
    ("localhost", Severity.ERROR, {"localhost": ("127.0.0.1", "10.0.0.7")}),
    ("localhost", Severity.ERROR, {"localhost": ()}),
]


def test_a_fit_machine_has_no_finding() -> None:
    assert machine_findings(FIT, DEMAND) == []


@pytest.mark.parametrize(("code", "severity", "changes"), BROKEN)
def test_one_problem_gives_one_finding_with_a_remedy(code: str, severity: Severity, changes: dict[str, object]) -> None:
    (finding,) = machine_findings(replace(FIT, **changes), DEMAND)  # type: ignore[arg-type]
    assert (finding.code, finding.severity) == (code, severity)
    assert finding.what
    assert finding.remedy


def test_findings_are_sorted_by_severity() -> None:
    findings = machine_findings(replace(FIT, cores=2, open_files_soft=1024, python=(3, 9)), DEMAND)
    assert [each.severity for each in findings] == [Severity.ERROR, Severity.WARNING, Severity.NOTE]


def test_an_unknown_clock_state_is_not_a_finding() -> None:
    assert machine_findings(replace(FIT, clock_synchronized=None), DEMAND) == []


def test_ports_and_memory_used_by_the_running_cluster_are_not_findings() -> None:
    busy = replace(FIT, ports=(Port("gateway.port", "127.0.0.1", 8443, "in use"),), memory_available=MEBIBYTE)
    assert machine_findings(replace(busy, cluster_running=True), DEMAND) == []


def test_reading_the_machine_changes_nothing_and_finds_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        ports = [("gateway.port", "127.0.0.1", taken)]
        facts = read_machine(
            tmp_path / "not" / "there", ports, IsolationConfig(), EgressMode.OFF, cluster_running=False
        )
    assert [(each.port, each.error) for each in facts.ports] == [(taken, "in use")]
    assert facts.home.writable
    assert facts.home.mode == 0
    assert facts.envoy.found.startswith("Envoy 1.")
    assert facts.java.found.startswith("Java ")
    assert facts.sandbox.found.startswith("sandbox: bubblewrap (/")
    assert not list(tmp_path.iterdir())


def test_a_sandbox_that_cannot_be_created_is_a_finding(tmp_path: Path) -> None:
    missing = IsolationConfig(bwrap=str(tmp_path / "bwrap"))
    facts = read_machine(tmp_path, [], missing, EgressMode.OFF, cluster_running=False)
    (finding,) = (each for each in machine_findings(facts, DEMAND) if each.code == "sandbox")
    assert finding.severity is Severity.ERROR
    assert str(tmp_path / "bwrap") in finding.what
    free = read_machine(tmp_path, [], IsolationConfig(level=IsolationLevel.NONE), EgressMode.OFF, cluster_running=False)
    assert "isolation-none" in [each.code for each in machine_findings(free, DEMAND)]


def test_the_doctor_command_fails_when_a_port_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("SLUICE__GATEWAY__PORT", str(listener.getsockname()[1]))
        run = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path), "--json"])
    answer = json.loads(run.stdout)
    assert run.exit_code == 1
    assert answer["fit"] is False
    assert "port" in [each["code"] for each in answer["findings"]]


def test_the_doctor_command_prints_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE__GATEWAY__PORT", "0")
    run = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path)])
    assert "Envoy 1." in run.stdout
    assert ("sluice up" in run.stdout) is (run.exit_code == 0)
