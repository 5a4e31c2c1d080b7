"""A waiting Python process of a driver runs a pipeline like a process that was started for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.runtime.node import ChildProcess
from sluice.runtime.spark.driver.program.imported_python import imported_python_argv, run_pipeline
from sluice.runtime.spark.jvm import Command

DEADLINE_SECONDS = 120
PIPELINE = """\
import json, os, sys
import dateutil
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "directory": os.getcwd(), "input": sys.stdin.read(),
    "environment": dict(os.environ), "has_pandas": "pandas" in sys.modules, "dateutil": dateutil.__file__,
    "left": [name for name in ("job", "imported", "places", "_become") if name in globals()],
}))
sys.exit(3)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The directory of the pipeline."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "pipeline.py").write_text(PIPELINE, encoding="utf-8")
    return folder


def run(app: Path, line: bytes | None = None, path: str = "") -> subprocess.CompletedProcess[bytes]:
    """Start a waiting Python, and tell it to run the pipeline in ``app``."""
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    job = {"environment": {**environment, "OF": "the job", "PYTHONPATH": path}, "directory": str(app)}
    job["argv"] = [str(app / "pipeline.py"), "--rows", "7"]
    told = json.dumps(job).encode() + b"\n" if line is None else line
    argv = imported_python_argv(app.parent / "ready")
    return subprocess.run(argv, input=told, env=environment, capture_output=True, timeout=DEADLINE_SECONDS, check=False)


def shown(done: subprocess.CompletedProcess[bytes]) -> Mapping[str, object]:
    """What the pipeline printed about its environment."""
    assert done.returncode == 3, done.stderr.decode()
    return dict(json.loads(done.stdout))


def test_a_waiting_python_runs_the_pipeline_like_a_fresh_process(app: Path) -> None:
    done = run(app)
    seen = shown(done)
    assert seen["argv"] == [str(app / "pipeline.py"), "--rows", "7"]
    assert seen["name"] == "__main__"
    assert seen["file"] == str(app / "pipeline.py")
    assert seen["directory"] == str(app)
    assert seen["input"] == ""
    assert isinstance(seen["environment"], dict)
    assert seen["environment"]["OF"] == "the job"
    assert seen["left"] == []
    assert seen["has_pandas"], "a session would import it now"
    assert done.stderr == b""


@pytest.mark.parametrize("where", ["beside the pipeline", "directory", "archive"])
def test_a_job_gets_its_own_version_of_an_already_imported_module(app: Path, tmp_path: Path, where: str) -> None:
    module = "MINE = True\n"
    path = ""
    if where == "beside the pipeline":
        (app / "dateutil.py").write_text(module, encoding="utf-8")
        own = app / "dateutil.py"
    elif where == "directory":
        own = tmp_path / "packages" / "dateutil.py"
        own.parent.mkdir()
        own.write_text(module, encoding="utf-8")
        path = str(own.parent)
    else:
        archive = tmp_path / "packages.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("dateutil.py", module)
        own, path = archive / "dateutil.py", str(archive)
    seen = shown(run(app, path=path))
    assert seen["dateutil"] == str(own)
    assert seen["argv"] == [str(app / "pipeline.py"), "--rows", "7"]
    assert seen["directory"] == str(app)
    assert isinstance(seen["environment"], dict)
    assert seen["environment"]["OF"] == "the job"
    assert seen["input"] == ""
    assert not seen["has_pandas"], "it has begun anew"


def test_a_directory_with_the_name_of_a_module_does_not_replace_the_module(app: Path) -> None:
    (app / "numpy").mkdir()
    assert shown(run(app))["has_pandas"]


def test_a_waiting_python_exits_when_its_input_closes(app: Path) -> None:
    done = run(app, b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.asyncio
async def test_a_waiting_process_that_has_ended_cannot_run_a_pipeline(app: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit(3)"]
    process = await ChildProcess.start(
        argv, env={"PATH": os.defpath}, cwd=app, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL
    )
    assert (await process.wait()).code == 3
    with pytest.raises(OSError, match="the process has ended"):
        await run_pipeline(process, Command((sys.executable, str(app / "pipeline.py")), {}, {}), {}, app)
