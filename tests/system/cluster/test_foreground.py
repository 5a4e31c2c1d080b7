"""``sluice up`` in the foreground."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from sluice.client.patient_reader import OUTAGE_SECONDS
from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import COMMAND, REPOSITORY, LocalCluster, eventually
from tests.processes import descendants

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_ctrl_c_stops_a_foreground_up_cleanly_and_is_reported_to_a_waiting_submit(tmp_path: Path) -> None:
    home, piped = tmp_path / "home", subprocess.PIPE
    (tmp_path / "slow.py").write_text(pipelines.SLOW, encoding="utf-8")
    command = [*COMMAND, "up", "--home", str(home), "--port", "0", "--taskmanagers", "1"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=piped, stderr=piped, text=True) as up:
        record = home / "run" / "cluster.json"
        eventually(lambda: record.exists() and json.loads(record.read_text())["ready"], "a ready cluster")
        cluster = LocalCluster(home)
        cluster.sluice("token", "create", "tester", "--role", "admin", "--output", str(home / "token"))
        waits = [*COMMAND, "submit", str(tmp_path / "slow.py"), "--wait", "--home", str(home), "--", "120"]
        with subprocess.Popen(waits, cwd=REPOSITORY, stdout=piped, stderr=piped, text=True) as waiting:
            try:
                eventually(lambda: waiting.poll() is not None or cluster.get("/v1/jobs")["jobs"], "a job")
                children = descendants(up.pid)
            finally:
                up.send_signal(signal.SIGINT)
            _, errors = up.communicate(timeout=60)
            assert up.returncode == 0, errors
            _, told = waiting.communicate(timeout=OUTAGE_SECONDS / 2)
    assert waiting.returncode == 3, told
    assert "the cluster was stopped before job" in told
    assert not [child for child in children if child.is_running()]
    assert not record.exists()
