"""The isolation level of TaskManagers.

Nothing starts if the level is not available. REST, the announcements and the audit all report it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from sluice.audit.model import Kind, Listener
from sluice.audit.runner import examine
from sluice.audit.subject import Options, Subject
from sluice.cli.cluster.commands import _registered
from sluice.cli.main import app
from sluice.core import EgressConfig, EgressMisconfigured, EgressSetting
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, SandboxUnavailable
from tests.integration.runtime.conftest import Cluster


async def start_at(
    cluster: Cluster, name: str, isolation: IsolationConfig, mode: EgressSetting = EgressSetting.DEFAULT
) -> None:
    """Start a TaskManager with these settings."""
    egress = EgressConfig(mode=mode)
    cluster.config = msgspec.structs.replace(cluster.config, isolation=isolation, egress=egress)
    await cluster.start_taskmanager(name)


async def test_differing_isolation_levels_are_reported_by_rest_announcements_and_the_audit(cluster: Cluster) -> None:
    await start_at(cluster, "tm-1", IsolationConfig())
    assert (await cluster.get("/v1/overview"))["isolation"] == {"sandbox": 1}

    await start_at(cluster, "tm-2", IsolationConfig(level=IsolationLevel.NONE))

    assert (await cluster.get("/v1/overview"))["isolation"] == {"sandbox": 1, "none": 1}
    found = {each["id"]: each["isolation"] for each in (await cluster.get("/v1/taskmanagers"))["taskmanagers"]}
    assert found == {"tm-1": "sandbox", "tm-2": "none"}
    assert {name: str(each.isolation) for name, each in _registered(cluster.home).items()} == found
    home = Listener(name="home", kind=Kind.HOME, path=str(cluster.home.root))
    findings = {each.check: each.seen for each in examine("a test", [Subject(home, Options())]).findings()}
    assert findings["ISO-01"] == "jobs can do whatever their TaskManager can: tm-2 (none)"

    await cluster.stop_taskmanager("tm-2")
    assert "ISO-01" not in {each.check for each in examine("a test", [Subject(home, Options())]).findings()}


async def test_egress_modes_are_reported_by_rest_announcements_and_the_audit(cluster: Cluster) -> None:
    for name, mode in (("tm-1", EgressSetting.DEFAULT), ("tm-2", EgressSetting.AUDIT), ("tm-3", EgressSetting.OFF)):
        await start_at(cluster, name, IsolationConfig(), mode)
    assert (await cluster.get("/v1/overview"))["egress"] == {"enforce": 1, "audit": 1, "off": 1}
    found = {each["id"]: each["egress"] for each in (await cluster.get("/v1/taskmanagers"))["taskmanagers"]}
    assert found == {"tm-1": "enforce", "tm-2": "audit", "tm-3": "off"}
    assert {name: str(each.egress) for name, each in _registered(cluster.home).items()} == found
    home = Listener(name="home", kind=Kind.HOME, path=str(cluster.home.root))
    findings = {each.check: each.seen for each in examine("a test", [Subject(home, Options())]).findings()}
    assert findings["ISO-02"] == "jobs connect to whatever their machine can reach, unrecorded: tm-3 (off)"


async def test_egress_enforcement_without_isolation_is_refused(cluster: Cluster) -> None:
    with pytest.raises(EgressMisconfigured, match="needs isolation"):
        await start_at(cluster, "tm-1", IsolationConfig(level=IsolationLevel.NONE), EgressSetting.ENFORCE)


async def test_a_taskmanager_that_cannot_isolate_jobs_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)

    with pytest.raises(SandboxUnavailable, match="No permissions to create new namespace") as caught:
        await start_at(cluster, "tm-1", IsolationConfig(bwrap=str(broken)))

    assert 'isolation.level = "none"' in caught.value.remedy
    assert (await cluster.get("/v1/taskmanagers"))["taskmanagers"] == []
    assert (await cluster.get("/v1/overview"))["isolation"] == {}


def test_a_cluster_that_cannot_isolate_jobs_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE__ISOLATION__BWRAP", str(tmp_path / "missing"))
    before = set(psutil.Process().children(recursive=True))

    run = CliRunner().invoke(app, ["up", "--home", str(tmp_path / "home")])

    assert isinstance(run.exception, SandboxUnavailable)
    assert str(tmp_path / "missing") in run.exception.what
    assert run.exception.remedy
    assert not (tmp_path / "home" / "pki" / "authorities").exists()
    assert set(psutil.Process().children(recursive=True)) <= before
