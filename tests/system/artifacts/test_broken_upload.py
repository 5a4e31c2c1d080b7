"""A large upload that breaks at the gateway again and again arrives complete.

Most of the file is sent only once.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sluice.client.access import edge_bundle
from sluice.client.errors import ClientError
from sluice.client.uploads import PIECE_BYTES
from sluice.core.home import Home
from tests.integration.cluster.conftest import (
    COMMAND,
    REPOSITORY,
    LocalCluster,
    eventually,
    start_cluster,
    without_shuffle as home_without_shuffle,
)
from tests.processes import command_line
from tests.system.artifacts.broken_line import Break, BrokenLine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PIPELINE = Path(__file__).with_name("digest.py")
MIB = 1 << 20
SIZE = 9 * PIECE_BYTES + 12_345
ON_THE_WAY = 3 * MIB
"""What a break may cost: what Envoy, sockets and REST had not passed on."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """One TaskManager, no shuffle service."""
    running = start_cluster(home_without_shuffle(tmp_path / "home"), "--taskmanagers", "1")
    try:
        yield running
    finally:
        running.sluice("down")


def kill_envoy(cluster: LocalCluster) -> None:
    """Kill Envoy itself with ``kill -9``; its parent process starts it again."""
    envoys = [each for each in cluster.processes() if Path((command_line(each) or [""])[0]).name == "envoy"]
    assert envoys
    for each in envoys:
        os.kill(each.pid, signal.SIGKILL)
    psutil.wait_procs(envoys, timeout=60)


def test_a_broken_upload_continues_where_it_broke(cluster: LocalCluster, tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "large.bin").write_bytes(content)
    result = tmp_path / "result"
    breaks = [
        Break(PIECE_BYTES + 2 * MIB),
        Break(PIECE_BYTES + 3 * MIB, reset=False),
        Break(PIECE_BYTES + 2 * MIB, happens=lambda: kill_envoy(cluster)),
    ]
    line = BrokenLine(cluster.home, deque(breaks))
    process = subprocess.Popen(
        [
            *(*COMMAND, "submit", str(PIPELINE), "--file", str(tmp_path / "large.bin"), "--executors", "1", "--wait"),
            *("--server", line.url, "--ca", str(edge_bundle(Home.at(cluster.home)))),
            *("--token-file", str(cluster.home / "token"), "--", "large.bin", str(result)),
        ],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "SLUICE_HOME": str(tmp_path / "elsewhere")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        offsets = []
        for number, _ in enumerate(breaks, start=1):
            eventually(lambda number=number: line.broken == number, f"break {number}")  # type: ignore[misc]
            offsets.append(settled_offset(cluster))
            line.mended.set()
        output, _ = process.communicate(timeout=200)
    finally:
        process.kill()
        line.close()
    assert process.returncode == 0, output
    assert result.read_text() == hashlib.sha256(content).hexdigest()
    assert offsets == sorted(set(offsets)), "each try brought something"
    assert any(offset % PIECE_BYTES for offset in offsets), "what had come of a piece is kept"
    assert line.sent < SIZE + len(breaks) * ON_THE_WAY, "it began anew"
    assert cluster.get("/v1/uploads") == {"uploads": []}


def settled_offset(cluster: LocalCluster) -> int:
    """Return how many bytes of the only upload have arrived, once that number no longer grows."""
    seen: list[int] = []

    def settled() -> bool:
        try:
            (upload,) = cluster.get("/v1/uploads")["uploads"]
        except (ClientError, OSError):  # Envoy is killed
            return False
        seen.append(int(upload["offset"]))
        return len(seen) > 1 and seen[-1] == seen[-2]

    eventually(settled, "nothing more comes")
    return seen[-1]
