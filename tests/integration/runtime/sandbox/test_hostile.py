"""A program that tries to get out of a real box: every attempt is refused."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from sluice.runtime.sandbox.entry import SCOPES_SINCE
from sluice.runtime.sandbox.landlock import landlock_version
from tests.integration.runtime.sandbox.conftest import Boxes

MARKER = "sluice-marker-of-a-process-outside"
PROGRAM = Path(__file__).with_name("hostile_program.py")

HARMLESS = (
    "read a key",
    "list the directory of another job",
    "connect to a unix socket by its path",
    "connect to an abstract unix socket",
    "see a process outside",
    "read the environment of another process",
    "signal a process outside",
    "read the memory of another process",
    "take a descriptor of another process",
    "write what it may only read",
)


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[dict[str, object]]:
    """What is outside of the box: a key, another job, listening sockets and a process.

    The process has a secret in its environment.
    """
    key, other, shown = tmp_path / "pki" / "ca.key", tmp_path / "other", tmp_path / "shown"
    for directory in (key.parent, other, shown):
        directory.mkdir(mode=0o755)
    key.write_text("secret", encoding="utf-8")
    key.chmod(0o644)  # what protects it is the box alone
    shutil.copy(PROGRAM, shown)
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))  # the usual directory may be too long for a socket
    place.chmod(0o755)  # as above
    path = place / "rest.sock"
    outside = subprocess.Popen(
        [sys.executable, "-c", "input()", MARKER],
        env={"SECRET": MARKER},
        stdin=subprocess.PIPE,
    )
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as abstract:
        by_path.bind(str(path))
        abstract.bind(f"\0sluice-test-{os.getpid()}")
        for each in (by_path, abstract):
            each.listen()
        path.chmod(0o777)
        yield {
            "key": str(key),
            "other_job": str(other),
            "read_only": str(shown),
            "unix_socket": str(path),
            "abstract_socket": f"sluice-test-{os.getpid()}",
            "marker": MARKER,
            "pid": outside.pid,
            "environment": sys.prefix,
        }
    outside.kill()
    outside.communicate()
    shutil.rmtree(place)


async def _results(boxes: Boxes, targets: dict[str, object], *attempts: str) -> dict[str, str]:
    shown = Path(str(targets["read_only"]))
    (shown / "targets.json").write_text(json.dumps(targets), encoding="utf-8")
    box = boxes.box(read_only=[shown])
    program = (sys.executable, str(shown / PROGRAM.name), str(shown / "targets.json"))
    ended = await boxes.run(*program, *attempts, box=box)
    assert ended.exit.code == 0, ended.err
    results: dict[str, str] = json.loads(ended.out)
    return results


async def test_every_attempt_to_get_out_of_the_box_is_refused(boxes: Boxes, targets: dict[str, object]) -> None:
    results = await _results(boxes, targets)

    if landlock_version() < SCOPES_SINCE:
        results.pop("connect to an abstract unix socket")  # boxes share the network
    assert {name: result for name, result in results.items() if not result.startswith("refused")} == {}
    assert len(results) >= 50
    assert not [name for name, result in results.items() if "NameError" in result or "TypeError" in result]


async def test_harmless_attempts_to_get_out_succeed_without_isolation(boxes: Boxes, targets: dict[str, object]) -> None:
    """So the box refuses them, not a mistake in the program. They change nothing on the machine."""
    boxes.sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    results = await _results(boxes, targets, *HARMLESS)

    assert results == dict.fromkeys(HARMLESS, "SUCCEEDED")
