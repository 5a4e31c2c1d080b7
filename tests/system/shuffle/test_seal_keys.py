"""Only the job and the processes that start it have the keys of its sealed shuffles; no disk has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.processes import command_line
from tests.shared_folder import shared_folder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PIPELINE = Path(__file__).parent / "pipelines" / "two_steps.py"
VARIABLE = "_SPARK_AUTH_SECRET"
LABEL = b"sluice sealed shuffle 1"
CONFIG = """
[shuffle]
enabled = true
workers = 2
replicas = 2
seal = true
encrypt_at_rest = false
"""
SHUFFLES, MAPS = range(1 << 20, (1 << 20) + 2), range(6)
"""The first ones of the job's first attempt."""


@pytest.fixture
def sealing(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster with a shuffle service."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "sluice.toml").write_text(CONFIG)
    cluster = start_cluster(home, "--taskmanagers", "1")
    try:
        yield cluster
    finally:
        cluster.sluice("down")


def secrets_of(cluster: LocalCluster, job_id: str) -> tuple[str, set[psutil.Process]]:
    """The job's secret, and the processes that have it in their environment."""
    found = {}
    for process in cluster.processes():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if VARIABLE in environment:
            found[process] = environment[VARIABLE]
    (secret,) = set(found.values())
    assert re.fullmatch("[0-9a-f]{64}", secret), job_id
    return secret, set(found)


def keys_of(secret: str, job_id: str) -> list[bytes]:
    """The secret as it is written and as bytes, and keys of the job's maps."""
    keys = [
        HKDF(SHA256(), 32, LABEL, shuffle.to_bytes(4, "little") + map_id.to_bytes(8, "little") + job_id.encode())
        for shuffle in SHUFFLES
        for map_id in MAPS
    ]
    return [secret.encode(), bytes.fromhex(secret), *(each.derive(secret.encode()) for each in keys)]


def memory_of(process: psutil.Process) -> Iterator[bytes]:
    """The contents of all writable memory of a process."""
    with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            start, end = (int(each, 16) for each in place.split("-"))
            if rights.startswith("rw"):
                try:
                    memory.seek(start)
                    yield memory.read(end - start)
                except OSError:
                    continue


def test_seal_keys_are_held_only_by_the_job_and_the_processes_that_start_it(sealing: LocalCluster) -> None:
    folder = shared_folder(sealing.shared, "sums")
    job_id = sealing.submit(PIPELINE, str(folder))
    eventually((folder / "first").exists, "the first shuffle was read", 150)
    secret, holders = secrets_of(sealing, job_id)
    keys = keys_of(secret, job_id)
    assert any(keys[0] in part for process in holders for part in memory_of(process)), "it would not be found"
    assert not any(secret in " ".join(command_line(process)) for process in sealing.processes())

    workers = [each for each in sealing.processes() if {"run", "shuffle-worker"} <= set(command_line(each))]
    managers = [each for each in sealing.processes() if {"run", "shuffle-manager"} <= set(command_line(each))]
    assert (len(workers), len(managers)) == (2, 1)
    sizes = {process.pid: 0 for process in [*workers, *managers]}
    for process in [*workers, *managers]:
        assert process not in holders
        for part in memory_of(process):
            sizes[process.pid] += len(part)
            assert not any(key in part for key in keys), f"a key of the job is in the memory of {command_line(process)}"
    assert min(sizes.values()) > 1 << 20

    stored = 0
    for path in [*sealing.home.rglob("*"), *sealing.shared.rglob("*")]:
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            stored += sealing.home / "shuffle" in path.parents and len(content)
            assert not any(key in content for key in keys), f"a key of the job is in {path}"
    assert stored > 1 << 20
    for resource in ("", "/stages", "/metrics", "/connections", "/shuffle", "/exceptions"):
        assert secret not in str(sealing.get(f"/v1/jobs/{job_id}{resource}"))
    (folder / "go").touch()
    assert sealing.wait_for_state(job_id, "FINISHED", "FAILED")["state"] == "FINISHED"
    logs = sealing.sluice("logs", job_id)
    assert secret not in logs.stdout + logs.stderr
