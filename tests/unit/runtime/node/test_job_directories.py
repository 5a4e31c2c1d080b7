"""How processes outside a job use directories that the job can write.

They follow no links and wait for nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.pki.issuing.leaf import SignedChain
from sluice.runtime.messages import CsrToSign, ExecutorLaunch
from sluice.runtime.node.child_process import Exit
from sluice.runtime.node.log_files import (
    LogUnreadable,
    open_log,
    read_log,
    shorten_log,
)
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from sluice.runtime.taskmanager.processes.agent import LOG_FILES
from sluice.runtime.taskmanager.processes.driver import clean_driver_directory
from sluice.runtime.taskmanager.processes.executor import ExecutorProcess, clean_executor_directory
from sluice.runtime.taskmanager.waiting.executor import STREAMS

TEXT = "PRIVATE KEY of the JobManager"

HOSTILE: tuple[tuple[str, Callable[[Path, Path], object]], ...] = (
    ("fifo", lambda path, _: os.mkfifo(path)),
    ("symlink", lambda path, secret: path.symlink_to(secret)),
    ("symlink to a device", lambda path, _: path.symlink_to("/dev/zero")),
    ("hard link", lambda path, secret: path.hardlink_to(secret)),
    ("directory", lambda path, _: path.mkdir()),
)
hostile = pytest.mark.parametrize("put", [pytest.param(put, id=name) for name, put in HOSTILE])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    place = tmp_path / "attempt-1"
    place.mkdir()
    return place


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.pem"
    path.write_text(TEXT)
    return path


@hostile
def test_a_hostile_entry_in_place_of_a_log_is_not_read(
    job: Path, secret: Path, put: Callable[[Path, Path], object]
) -> None:
    put(job / "driver.stdout", secret)
    with pytest.raises(LogUnreadable, match=r"driver\.stdout"):
        read_log(job / "driver.stdout", 0, 100)


async def test_a_fifo_in_place_of_a_log_blocks_no_threads(job: Path) -> None:
    os.mkfifo(job / "driver.stderr")
    asked = [asyncio.to_thread(read_log, job / "driver.stderr", 0, 1) for _ in range(64)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, LogUnreadable) for each in answers)


@hostile
def test_a_hostile_entry_in_place_of_a_log_is_removed_but_not_its_target(
    job: Path, secret: Path, put: Callable[[Path, Path], object]
) -> None:
    put(job / "driver.stdout", secret)
    shorten_log(job / "driver.stdout", keep=1)
    assert list(job.iterdir()) == []
    assert secret.read_text() == TEXT


def test_a_sparse_log_is_shortened_without_being_read(job: Path) -> None:
    with open_log(job / "driver.stdout") as log:
        log.truncate(1 << 40)
    with (job / "driver.stdout").open("ab") as log:
        log.write(b"the end")
    shorten_log(job / "driver.stdout", keep=7)
    assert (job / "driver.stdout").read_bytes() == b"the end"


@pytest.mark.parametrize(
    ("clean", "logs"),
    [
        pytest.param(clean_driver_directory, tuple(LOG_FILES.values()), id="driver"),
        pytest.param(clean_executor_directory, STREAMS, id="executor"),
    ],
)
def test_cleaning_a_job_directory_keeps_only_regular_log_files(
    job: Path, secret: Path, clean: Callable[[Path], None], logs: tuple[str, ...]
) -> None:
    for name, put in HOSTILE:
        put(job / name, secret)
        (job / f"in {name}").mkdir()
        put(job / f"in {name}" / "file", secret)
    (job / "identity").symlink_to(secret.parent)
    os.mkfifo(job / logs[0])
    (job / logs[1]).write_text("a line\n")
    clean(job)
    assert [path.name for path in job.iterdir()] == [logs[1]]
    assert secret.read_text() == TEXT
    clean(job / "none")


async def _nobody_signs(request: CsrToSign) -> SignedChain:
    raise NotImplementedError


def test_the_exit_report_of_an_executor_explains_a_full_heap(tmp_path: Path) -> None:
    launch = ExecutorLaunch(
        job_id="0" * 32,
        allocation_id="a",
        executor_id=1,
        app_id="app",
        driver_url="",
        resource_profile_id=0,
        cores=1,
        memory_mb=768,
        startup_conf={},
        java_options=(),
        spark_auth_secret="",
        python="",
    )
    sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    executor = ExecutorProcess(
        launch, tmp_path, host="127.0.0.1", trust_domain="td", sign=_nobody_signs, sandbox=sandbox
    )
    report = executor.exit_report(Exit(3))
    assert report.reason == "out of memory: its heap of 768 MiB is full (exit code 3); raise --executor-memory"
    assert report.by_application
    killed = executor.exit_report(Exit(-15))
    assert (killed.exit_code, killed.reason, killed.by_application) == (143, "killed by SIGTERM", False)
