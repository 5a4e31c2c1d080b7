"""``sluice gateway acme``: its output and exit codes."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from sluice.core.home import Home
from sluice.gateway.acme.schedule import failed, started, succeeded
from sluice.gateway.acme.store import AcmeStore, settings_digest
from sluice.gateway.config import AcmeConfig
from tests.command import sluice
from tests.public_authority import DAY, PublicAuthority

NAMES = ("sluice.example.com",)
CONFIG = AcmeConfig(directory="https://acme.test/dir", terms_of_service_agreed=True)
SETTINGS = """
[gateway]
server_names = ["sluice.example.com"]
[gateway.acme]
directory = "https://acme.test/dir"
terms_of_service_agreed = true
"""

Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path / "home").create()
    (home.root / "sluice.toml").write_text(SETTINGS)
    return home


@pytest.fixture
def command(home: Home) -> Command:
    def run(*arguments: str) -> CompletedProcess[str]:
        return sluice("gateway", *arguments, environment={"SLUICE_HOME": str(home.root), "COLUMNS": "200"})

    return run


def issue(home: Home) -> int:
    store, now = AcmeStore(home), dt.datetime.now(dt.UTC)
    issued = PublicAuthority(now - DAY).issue(*NAMES)
    with store.ordering():
        store.activate(store.stage(issued.chain_pem, issued.key))
        store.save_state(
            succeeded(started(store.state(), settings_digest(CONFIG, NAMES), now, 0.0), CONFIG.directory, now)
        )
    return issued.leaf.serial_number


def test_status_without_a_certificate_exits_with_1(command: Command) -> None:
    done = command("acme", "status")
    assert done.returncode == 1
    assert "none that is valid" in done.stdout
    assert "there is no valid certificate for gateway.server_names" in done.stdout


def test_status_shows_the_certificate_and_the_time_of_the_next_order(home: Home, command: Command) -> None:
    serial = issue(home)
    done = command("acme", "status", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["serial"], told["failures"], told["last_error"]) == (f"{serial:x}", 0, "")
    end = dt.datetime.fromisoformat(told["not_after"])
    left = end - dt.datetime.fromisoformat(told["next_order"])
    assert 26 * DAY < left < 31 * DAY


def test_status_shows_the_last_failure(home: Home, command: Command) -> None:
    issue(home)
    store, now = AcmeStore(home), dt.datetime.now(dt.UTC)
    state = started(store.state(), settings_digest(CONFIG, NAMES), now, 0.0)
    store.save_state(failed(state, "the ACME server refuses: rateLimited: too many", None, now))
    done = command("acme", "status")
    assert done.returncode == 1
    assert "! 1 failed" in done.stdout
    assert "rateLimited: too many" in done.stdout


def test_renew_needs_a_running_gateway(command: Command) -> None:
    done = command("acme", "renew", "--now")
    assert done.returncode == 3
    assert "no gateway runs" in done.stderr


def test_renew_does_nothing_before_it_is_due(home: Home, command: Command) -> None:
    issue(home)
    endpoint = home.run / "endpoints" / "envoy.json"
    endpoint.parent.mkdir(parents=True)
    endpoint.write_text('{"host": "127.0.0.1", "port": 1}')
    done = command("acme", "renew")
    assert done.returncode == 0
    assert "nothing to do before" in done.stdout
    assert json.loads(command("acme", "renew", "--json").stdout) == {"renewed": False}


def test_verbs_without_an_acme_table_name_the_table_to_add(home: Home, command: Command) -> None:
    (home.root / "sluice.toml").write_text("")
    for verb in ("status", "renew"):
        done = command("acme", verb)
        assert done.returncode == 1
        assert "[gateway.acme]" in done.stderr


def test_nginx_is_refused_because_it_cannot_answer_acme_challenges(command: Command) -> None:
    done = command("render", "--proxy", "nginx")
    assert done.returncode == 2
    assert "certbot" in done.stderr


def test_terms_must_be_agreed_to(home: Home, command: Command) -> None:
    (home.root / "sluice.toml").write_text(SETTINGS.replace("terms_of_service_agreed = true", ""))
    done = command("acme", "status")
    assert done.returncode == 2
    assert "terms_of_service_agreed must be true" in done.stderr
    assert os.linesep * 3 not in done.stderr
