"""The root and both authorities below it are replaced while RPC, blob, gateway and Spark are at work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.identities.directory import CHAIN_FILE, read_certificates
from sluice.pki.spiffe_id import Role
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind
from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle
from tests.system.rotation.load import LOADER, Load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

REQUESTS_IN_EACH_PHASE = 5


def rotate(cluster: LocalCluster, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run one step of the root rotation."""
    return cluster.sluice("pki", "rotate", verb, "root", *options)


def status(cluster: LocalCluster) -> Any:
    """What ``sluice pki rotate --status`` says."""
    return cluster.json("pki", "rotate", "--status")


def start_another(cluster: LocalCluster, scratch: Path) -> None:
    """Check that a new job gets its identities and finishes."""
    pipeline = scratch / "sum.py"
    pipeline.write_text(pipelines.SUM, encoding="utf-8")
    job = cluster.wait_for_state(cluster.submit(pipeline), "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", json.dumps(job)


def in_memory(cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    """What each reporting program presents and trusts, by program."""
    return {each["program"]: each for each in status(cluster)["holders"] if each["source"] == "process"}


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster with two TaskManagers, so that two jobs fit at a time."""
    running = start_cluster(without_shuffle(tmp_path / "home"), "--taskmanagers", "2")
    yield running
    running.sluice("down")


@pytest.fixture
def work(own_cluster: LocalCluster, tmp_path: Path) -> Iterator[tuple[str, Load, Path]]:
    """The id of a running Spark job, the load on the cluster, and the file that ends the job."""
    home, until = Home.at(own_cluster.home), own_cluster.shared / "enough"
    issued = own_cluster.sluice("pki", "issue", f"taskmanager/{LOADER}")
    assert issued.returncode == 0, issued.stderr
    pipeline = tmp_path / "rounds.py"
    pipeline.write_text(pipelines.ROUNDS, encoding="utf-8")
    job_id = own_cluster.submit(pipeline, str(until))
    eventually(lambda: own_cluster.job(job_id)["progress"]["shuffle_bytes_read"] > 0, "a shuffle")
    load = Load(home, job_id, pipeline, tmp_path)
    load.start()
    try:
        yield job_id, load, until
    finally:
        load.stop()


def test_the_root_is_rotated_under_load_without_a_failed_request(
    own_cluster: LocalCluster, work: tuple[str, Load, Path], tmp_path: Path
) -> None:
    job_id, load, until = work
    home = Home.at(own_cluster.home)
    store = AuthorityStore(home.pki)
    before = {kind: key_id(store.certificate(kind)) for kind in AuthorityKind}

    def carry_on() -> None:
        """Check that every channel serves requests and that the running job shuffles; called in each phase."""
        done = load.done.copy()
        read = own_cluster.job(job_id)["progress"]["shuffle_bytes_read"]
        eventually(
            lambda: all(load.done[name] >= done[name] + REQUESTS_IN_EACH_PHASE for name in done), "requests served"
        )
        eventually(lambda: own_cluster.job(job_id)["progress"]["shuffle_bytes_read"] > read, "another shuffle")
        assert load.failures == []

    eventually(lambda: len(load.done) == 4, "the first request on each channel")
    carry_on()
    assert rotate(own_cluster, "activate").returncode == 1, "nothing is prepared"

    # 1. A -> A+B: everybody trusts both, the old one signs.
    prepared = rotate(own_cluster, "prepare", "--wait", "60")
    assert prepared.returncode == 0, prepared.stderr
    assert rotate(own_cluster, "prepare").returncode == 1, "one rotation at a time"
    assert rotate(own_cluster, "finish").returncode == 1, "the new authority does not sign yet"
    carry_on()

    # 2. A+B -> B+A: the new one signs, and everybody gets a certificate of it.
    activated = rotate(own_cluster, "activate", "--wait", "60")
    assert activated.returncode == 0, activated.stderr
    carry_on()
    start_another(own_cluster, tmp_path)
    programs = in_memory(own_cluster)
    assert {"ca", "jobmanager", "taskmanager", "driver", "executor"} <= programs.keys()

    # 3. B+A -> B: refused until nothing of the old one is left, driver and executors included.
    finished = rotate(own_cluster, "finish", "--wait", "120")
    assert finished.returncode == 0, finished.stderr
    carry_on()
    start_another(own_cluster, tmp_path)

    # 4. B: nobody has or trusts anything else, in files or in memory.
    after = {kind: key_id(store.certificate(kind)) for kind in AuthorityKind}
    assert all(after[kind] != before[kind] for kind in AuthorityKind), "all three are new"
    document = status(own_cluster)
    assert document["phase"] == "A", document["phase"]
    assert document["waiting_for"] == []
    for holder in document["holders"]:
        assert len(holder["trusts"]) == 1, holder
        assert holder["presents"] == holder["trusts"][0], holder
    loader = read_certificates(home.identity(Role.TASKMANAGER, LOADER) / CHAIN_FILE)[0]
    assert issuer_id(loader) == after[AuthorityKind.INTERNAL]

    # The job that ran through all of it is right, and no task of it failed.
    load.stop()  # before the job ends, and its blobs with it
    assert load.failures == []
    assert set(load.done) == {"gateway", "rpc", "lasting rpc", "blob"}
    until.touch()
    job = own_cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", json.dumps(job)
    assert job["progress"]["tasks_failed"] == 0
