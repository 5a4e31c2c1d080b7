"""Whether a listener of a job has ended, or only does not answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sluice.audit.model import Kind, Listener
from sluice.audit.subject import Options, Subject
from sluice.core.home import Home
from tests.free_ports import free_port

JOB = "a" * 32


def subject(name: str, home: Home | None, job_id: str = JOB) -> Subject:
    """A listener at a port at which nobody listens."""
    listener = Listener(name=name, kind=Kind.MUTUAL, host="127.0.0.1", port=free_port(), job_id=job_id)
    return Subject(listener, Options(), home=home)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path)


def identity(home: Home) -> Path:
    return home.root / "work" / "tm-1" / "jobs" / JOB / "driver-1" / "identity" / "chain.pem"


def test_a_silent_jvm_that_still_runs_has_not_ended(home: Home) -> None:
    assert not subject(f"executor-{os.getpid()}-7000", home).has_ended


def test_the_listener_of_a_jvm_that_is_gone_has_ended_although_its_job_runs(home: Home) -> None:
    """Executors come and go with dynamic allocation."""
    identity(home).parent.mkdir(parents=True)
    identity(home).touch()
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert subject(f"executor-{gone.pid}-7000", home).has_ended


def test_another_listener_of_a_job_has_ended_when_the_driver_has_no_identity_left(home: Home) -> None:
    silent = subject("connect-abc", home)
    assert silent.has_ended
    identity(home).parent.mkdir(parents=True)
    identity(home).touch()
    assert not silent.has_ended


def test_a_process_of_the_cluster_never_counts_as_ended(home: Home) -> None:
    assert not subject("rpc", home, job_id="").has_ended
    assert subject("connect-abc", None).has_ended, "without a home, nobody says that the job runs"
