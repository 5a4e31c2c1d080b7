"""The layers of the configuration, and the handling of unknown keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli import config
from sluice.cli.errors import UsageError
from sluice.cli.main import app
from sluice.core import EgressMode, egress_mode


def load(text: str, tmp_path: Path, **environment: str) -> config.Configuration:
    file = tmp_path / "sluice.toml"
    file.write_text(text, encoding="utf-8")
    return config.load(file, environment=environment)


def test_defaults_need_no_file() -> None:
    loaded = config.load(None, environment={})
    assert loaded.pki.trust_domain == "sluice.local"
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.runtime.trust_domain == loaded.pki.trust_domain


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        pytest.param("", True, id="nobody says"),
        pytest.param("[shuffle]\nenabled = false\n", False, id="turned off"),
        pytest.param("[shuffle]\nworkers = 3\n", True, id="another setting of it"),
        pytest.param(
            '[ha]\nmode = "kubernetes"\nstorage = "s3://b/s"\n', False, id="JobManagers that others share with"
        ),
    ],
)
def test_an_embedded_cluster_enables_the_shuffle_service_by_default(text: str, enabled: bool, tmp_path: Path) -> None:
    loaded = load(text, tmp_path)
    assert not loaded.shuffle.enabled
    assert loaded.embedded().shuffle.enabled is enabled
    assert loaded.embedded().runtime.shuffle.enabled is enabled


@pytest.mark.parametrize("level", ["none", "uid"])
@pytest.mark.parametrize("mode", ["enforce", "audit"])
def test_an_egress_mode_with_its_own_network_is_refused_without_sandboxes(
    mode: str, level: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=rf'egress.mode = "{mode}" needs isolation.level = "sandbox", not "{level}"'):
        load(f'[isolation]\nlevel = "{level}"\n[egress]\nmode = "{mode}"\n', tmp_path)


def test_egress_is_off_by_default_without_sandboxes(tmp_path: Path) -> None:
    for text in ('[isolation]\nlevel = "none"\n', '[isolation]\nlevel = "uid"\n[egress]\nmode = "off"\n'):
        loaded = load(text, tmp_path).runtime
        assert egress_mode(loaded.egress, loaded.isolation.level) is EgressMode.OFF


def test_an_unknown_egress_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"egress\.mode"):
        load('[egress]\nmode = "no"\n', tmp_path)


def test_flags_override_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text("[taskmanager]\ncount = 3\nslots = 4\nslot_cores = 2\n", encoding="utf-8")
    loaded = config.load(
        file,
        environment={"SLUICE__TASKMANAGER__SLOTS": "5", "SLUICE__TASKMANAGER__COUNT": "6", "PATH": "/bin"},
        flags={"taskmanager.count": 7, "taskmanager.host": None},
    )
    section = loaded.taskmanager
    assert (section.count, section.slots, section.slot_cores) == (7, 5, 2)
    assert loaded.origins["taskmanager.count"] == "flag"
    assert loaded.origins["taskmanager.slots"] == "environment"
    assert loaded.origins["taskmanager.slot_cores"] == str(file)
    assert loaded.origins["taskmanager.host"] == "default"


@pytest.mark.parametrize(
    ("text", "named", "suggested"),
    [
        pytest.param("[taskmanger]\ncount = 1\n", "taskmanger", "taskmanager", id="section with a typo"),
        pytest.param("[taskmanager]\nslot = 1\n", "taskmanager.slot", "slots", id="key with a typo"),
        pytest.param("[gateway]\nxyzzy = 1\n", "gateway.xyzzy", "known:", id="key near nothing"),
        pytest.param("taskmanager = 3\n", "taskmanager", "[taskmanager]", id="a value where a table belongs"),
        pytest.param("[taskmanager]\nslots = 'many'\n", "taskmanager.slots", "sluice.toml", id="wrong type"),
        pytest.param("[gateway]\nheader_timeout = 0.0\n", "header_timeout must be", "sluice.toml", id="a bound"),
        pytest.param(
            "[jobs]\nallow_conf = ['spark.ssl.*']\n", "spark.ssl.*", "leave it out", id="what no job may have"
        ),
        pytest.param("[taskmanager\n", "sluice.toml", "TOML", id="not TOML"),
    ],
)
def test_configuration_mistakes_are_named_with_a_remedy(text: str, named: str, suggested: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(text, tmp_path)
    assert named in str(caught.value)
    assert suggested in str(caught.value)


def test_an_unknown_environment_key_is_an_error_too() -> None:
    with pytest.raises(UsageError, match="SLUICE__GATEWAY__PROT"):
        config.load(None, environment={"SLUICE__GATEWAY__PROT": "1"})


def test_the_configuration_file_of_the_home_precedes_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    assert config.find_config_file(None, home) is None
    (tmp_path / "sluice.toml").write_text("")
    assert config.find_config_file(None, home) == tmp_path / "sluice.toml"
    (home / "sluice.toml").write_text("")
    assert config.find_config_file(None, home) == home / "sluice.toml"
    with pytest.raises(UsageError, match="no configuration file"):
        config.find_config_file(tmp_path / "missing.toml", home)


@pytest.mark.parametrize(
    ("text", "shown", "origin"),
    [
        pytest.param("", True, config.EMBEDDED, id="nobody says"),
        pytest.param("[shuffle]\nenabled = false\n", False, "sluice.toml", id="turned off"),
    ],
)
def test_config_show_shows_the_shuffle_default_of_an_embedded_cluster(
    text: str, shown: bool, origin: str, tmp_path: Path
) -> None:
    (tmp_path / "sluice.toml").write_text(text)
    done = CliRunner().invoke(app, ["config", "show", "--json", "--home", str(tmp_path)], catch_exceptions=False)
    told = json.loads(done.output)["shuffle.enabled"]
    assert told["value"] is shown
    assert told["origin"].endswith(origin)
