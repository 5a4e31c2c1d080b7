"""What spark-submit leaves behind in Kubernetes, tested with stand-ins for kubectl and spark-submit."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.cli.errors import CommandError
from sluice.cli.jobs.kubernetes import Kubectl, submit_with_files

KUBECTL = """
import json, pathlib, sys
here = pathlib.Path({here!r})
arguments = sys.argv[3:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if (here / ("no-" + arguments[0])).exists():
    sys.exit("Error from server (Forbidden): you may not " + arguments[0])
if arguments[0] == "get":
    pod = here / "driver"
    items = [{{"metadata": {{"name": "p-driver", "uid": "u-1"}}}}] if pod.exists() else []
    print(json.dumps({{"items": items}}))
"""
SUBMIT = """
import pathlib, sys, time
here = pathlib.Path({here!r})
pod = here / "driver"
if (here / "makes-driver").exists():
    pod.touch()
    deadline = time.monotonic() + 30
    while (here / "waits-for-owner").exists() and "patch" not in (here / "calls").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if (here / "driver-goes").exists():
        pod.unlink()
sys.exit(int((here / "exit").read_text()))
"""


@dataclass
class Cluster:
    """Controls the stand-ins through marker files and reads which calls they received."""

    here: Path

    def submit(self, status: int, *marks: str) -> None:
        """Run a submission in which spark-submit exits with ``status``; ``marks`` control the stand-ins."""
        (self.here / "exit").write_text(str(status))
        for mark in marks:
            (self.here / mark).touch()
        kubectl = Kubectl(str(self.here / "kubectl"), "spark", {"PATH": "/usr/bin:/bin"})
        command = [sys.executable, str(self.here / "spark-submit")]
        submit_with_files(kubectl, "ab", "sluice-ab-files", self.here / "files.json", command)

    def calls(self, verb: str) -> list[list[str]]:
        """Return the kubectl calls with this verb."""
        lines = (self.here / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call[0] == verb]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "kubectl").write_text(f"#!{sys.executable}\n{KUBECTL.format(here=str(tmp_path))}")
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "spark-submit").write_text(SUBMIT.format(here=str(tmp_path)))
    return Cluster(tmp_path)


@pytest.mark.parametrize("status", [0, 1])
def test_the_config_map_gets_the_driver_as_its_owner_during_submission(cluster: Cluster, status: int) -> None:
    if status:
        with pytest.raises(CommandError, match="exit code 1"):
            cluster.submit(status, "makes-driver", "waits-for-owner")
    else:
        cluster.submit(status, "makes-driver", "waits-for-owner")
    (patch,) = cluster.calls("patch")
    assert patch[:3] == ["patch", "configmap", "sluice-ab-files"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p-driver", "uid": "u-1"}
    assert json.loads(patch[-1]) == {"metadata": {"ownerReferences": [owner]}}
    assert cluster.calls("delete") == []


def test_a_failed_submission_without_a_driver_deletes_its_config_map_and_service(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match="exit code 1"):
        cluster.submit(1)
    (delete,) = cluster.calls("delete")
    assert delete == ["delete", "configmap,service", "--selector", "sluice/job=ab", "--ignore-not-found"]


def test_the_config_map_is_deleted_if_its_driver_disappears_during_submission(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match="exit code 1"):
        cluster.submit(1, "makes-driver", "waits-for-owner", "driver-goes")
    assert len(cluster.calls("patch")) == len(cluster.calls("delete")) == 1


def test_spark_submit_is_not_run_if_kubernetes_refuses_the_config_map(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match="Forbidden"):
        cluster.submit(0, "no-apply", "makes-driver")
    assert not (cluster.here / "driver").exists()


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_config_map_without_an_owner_is_kept_and_its_deletion_explained(
    cluster: Cluster, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.submit(0, "makes-driver", f"no-{verb}")
    assert cluster.calls("delete") == []
    assert "delete configmap sluice-ab-files" in capsys.readouterr().err


def test_a_refused_clean_up_names_the_remaining_config_map(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="exit code 1"):
        cluster.submit(1, "no-delete")
    assert "sluice-ab-files is left" in capsys.readouterr().err
