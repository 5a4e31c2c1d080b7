"""Requests to restart a TaskManager after it has left: who may make them, and how often one counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.cli.cluster import comebacks
from sluice.cli.cluster.records import ClusterRecord, ProcessRecord, write_record
from sluice.cli.errors import CommandError
from sluice.core.home import Home

NAME = "taskmanager-1"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path / "home")
    home.run.mkdir(parents=True)
    own = ProcessRecord.of("launcher", os.getpid())
    write_record(home, ClusterRecord(own, (ProcessRecord.of(NAME, os.getpid()),)))
    return home


def test_a_comeback_request_is_taken_once(home: Home) -> None:
    assert not comebacks.take(home, NAME)
    assert comebacks.request(home, NAME).pid == os.getpid()
    assert comebacks.take(home, NAME)
    assert not comebacks.take(home, NAME)


def test_a_comeback_request_can_be_withdrawn(home: Home) -> None:
    comebacks.request(home, NAME)
    comebacks.withdraw(home, NAME)
    comebacks.withdraw(home, NAME)
    assert not comebacks.take(home, NAME)


@pytest.mark.parametrize("name", ["taskmanager-2", "../cluster.json", "/etc/passwd", ""])
def test_a_comeback_of_a_process_that_sluice_up_has_not_started_is_refused(home: Home, name: str) -> None:
    with pytest.raises(CommandError, match="has not started"):
        comebacks.request(home, name)
    comebacks.withdraw(home, name)
    assert (home.run / "cluster.json").exists()


def test_a_comeback_request_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="start its service again"):
        comebacks.request(Home.at(tmp_path / "home"), NAME)
