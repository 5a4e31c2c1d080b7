"""A TaskManager that is to start again after it has left: who may ask, and how often it counts."""

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


def test_it_counts_once(home: Home) -> None:
    assert not comebacks.take(home, NAME)
    assert comebacks.request(home, NAME).pid == os.getpid()
    assert comebacks.take(home, NAME)
    assert not comebacks.take(home, NAME)


def test_it_can_be_withdrawn(home: Home) -> None:
    comebacks.request(home, NAME)
    comebacks.withdraw(home, NAME)
    comebacks.withdraw(home, NAME)
    assert not comebacks.take(home, NAME)


@pytest.mark.parametrize("name", ["taskmanager-2", "../cluster.json", "/etc/passwd", ""])
def test_only_what_sluice_up_has_started_comes_back(home: Home, name: str) -> None:
    with pytest.raises(CommandError, match="has not started"):
        comebacks.request(home, name)
    comebacks.withdraw(home, name)
    assert (home.run / "cluster.json").exists()


def test_without_a_cluster_nothing_comes_back(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="start its service again"):
        comebacks.request(Home.at(tmp_path / "home"), NAME)
