"""``sluice pki revoke`` in a running cluster, used as an operator uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.revocation.crl import load_crls
from sluice.pki.revocation.crl_files import CRL_FILE, identity_directories
from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import LocalCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SOMEBODY = 0x5A3F


def told(home: Path) -> dict[str, bool]:
    """Return for each identity directory whether its CRL contains :data:`SOMEBODY`."""
    return {
        str(directory.relative_to(home)): any(
            crl.get_revoked_certificate_by_serial_number(SOMEBODY) is not None
            for crl in load_crls((directory / CRL_FILE).read_bytes())
        )
        for directory in identity_directories(Home.at(home))
    }


def test_revoked_taskmanager_is_cut_off_at_once_and_returns_only_by_hand(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    pipeline = tmp_path / "slow.py"
    pipeline.write_text(pipelines.SLOW, encoding="utf-8")
    job_id = own_cluster.submit(pipeline, "30")
    eventually(lambda: own_cluster.job(job_id)["progress"]["tasks_running"] > 0, "a running task")
    done = own_cluster.sluice("pki", "revoke", f"{SOMEBODY:x}", "--authority", "internal", "--reason", "superseded")
    assert done.returncode == 0, done.stderr
    lists = told(own_cluster.home)
    assert not lists.pop("pki/identities/gateway/edge"), "the other side"
    assert {Path(name).parts[0] for name in lists} == {"pki", "jobs", "work"}
    assert all(lists.values()), "processes, driver and executors alike"
    assert own_cluster.sluice("jobs", "cancel", job_id).returncode == 0
    own_cluster.wait_for_state(job_id, "CANCELED")

    revoked = own_cluster.sluice("pki", "revoke", "taskmanager/taskmanager-1", "--reason", "key-compromise")
    assert revoked.returncode == 0, revoked.stderr
    eventually(lambda: own_cluster.get("/v1/overview")["taskmanagers"] == 0, "the end of its connection", 5)
    log = own_cluster.home / "log" / "jobmanager.log"
    eventually(lambda: "rpc: refused" in log.read_text() and "was revoked" in log.read_text(), "a refused attempt")
    assert own_cluster.get("/v1/overview")["taskmanagers"] == 0

    issued = own_cluster.sluice("pki", "issue", "taskmanager/taskmanager-1", "--ip", "127.0.0.1")
    assert issued.returncode == 0, issued.stderr
    eventually(lambda: own_cluster.get("/v1/overview")["taskmanagers"] == 1, "its return")
