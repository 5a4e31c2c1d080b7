"""Level ``uid``: the same hostile program as in a sandbox, but without namespaces."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from sluice.runtime.sandbox.uids import job_uid
from tests.integration.runtime.sandbox.conftest import JOB
from tests.ordinary_user import ROOT, python_of_nobody, python_of_root

PROGRAM = Path(__file__).with_name("hostile_program.py")
START = """
import asyncio, json, sys
from pathlib import Path
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox, SandboxUnavailable, View
async def main():
    directory, job = Path(sys.argv[1]), sys.argv[2]
    sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.UID))
    work, shown = directory / "work", directory / "shown"
    sandbox.own([work], job)
    box = sandbox.box(View(job, (shown,), (work,)), sandbox.limits())
    argv = (sys.executable, str(shown / "program.py"), str(shown / "targets.json"))
    with (directory / "out").open("wb") as out:
        child = await ChildProcess.start(argv, env={"PATH": "/usr/bin:/bin"}, cwd=work, stdout=out, stderr=2, box=box)
        sys.exit((await child.wait()).code)
asyncio.run(main())
"""
IN_SIGHT = {"see a process outside"}
"""What only a pid namespace hides."""


async def _run(*command: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    _, told = await process.communicate()
    return process.returncode, told.decode()


def _prepared(directory: Path) -> None:
    """Lay out the targets. All files are readable for everybody: only the box protects them."""
    for name in ("work", "shown", "other", "pki"):
        (directory / name).mkdir(mode=0o755)
    (directory / "pki" / "ca.key").write_text("secret", encoding="utf-8")
    (directory / "shown" / "program.py").write_bytes(PROGRAM.read_bytes())
    targets = {
        "key": str(directory / "pki" / "ca.key"),
        "other_job": str(directory / "other"),
        "read_only": str(directory / "shown"),
        "unix_socket": str(directory / "none"),
        "abstract_socket": "sluice-none",
        "marker": "asyncio.run(main())",
        "pid": os.getpid(),
        "environment": sys.prefix,
    }
    (directory / "shown" / "targets.json").write_text(json.dumps(targets), encoding="utf-8")


async def test_a_uid_of_its_own_keeps_a_job_from_the_rest(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        code, told = await _run(*python_of_nobody(), "-c", START, str(tmp_path), JOB)
        assert code != 0
        assert "needs root" in told
        return
    await asyncio.to_thread(_prepared, tmp_path)
    code, told = await _run(*python_of_root(), "-c", START, str(tmp_path), JOB)
    assert code == 0, told
    results = json.loads((tmp_path / "out").read_text(encoding="utf-8"))

    succeeded = {name for name, result in results.items() if not result.startswith("refused")}
    assert succeeded <= IN_SIGHT
    assert len(results) >= 50
    assert (tmp_path / "work").stat().st_uid == job_uid(JOB)
