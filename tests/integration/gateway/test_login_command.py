"""``sluice login``, ``whoami`` and ``logout`` against a real gateway; a user confirms in a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from sluice.gateway.credentials.access_tokens import CSRF_COOKIE
from sluice.gateway.credentials.users import UserStore
from tests.command import sluice

from .conftest import DEADLINE_SECONDS, Gateway, Reply

PASSWORD = "correct horse battery"  # noqa: S105  of the tests' own user


class Person:
    """A user with a command line and a browser."""

    def __init__(self, gateway: Gateway, configuration: Path) -> None:
        self.gateway = gateway
        self.configuration = configuration
        self.cookies: dict[str, str] = {}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command as a separate process."""
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self.configuration)}
        environment.pop("SLUICE_TOKEN", None)
        return subprocess.Popen(
            [sys.executable, "-m", "sluice.cli.main", *arguments, *self.options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def options(self) -> tuple[str, ...]:
        """The options that tell the command where the gateway is."""
        server = f"https://localhost:{self.gateway.port}"
        ca, home = str(self.gateway.authority.certificate_file), str(self.gateway.home.root)
        return "--server", server, "--ca", ca, "--home", home

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command; return its exit code, standard output and standard error."""
        environment = {"XDG_CONFIG_HOME": str(self.configuration), "SLUICE_TOKEN": None}
        done = sluice(*arguments, *self.options, environment=environment)
        return done.returncode, done.stdout, done.stderr

    def login(self, decision: str) -> tuple[int, str, str]:
        """Run ``sluice login``, submit ``decision`` in the browser, and wait for the command to end."""
        with self.start("login", "--no-browser", "--json") as process:
            assert process.stderr is not None
            process.stderr.readline()
            match = re.search(r"code ([A-Z]{4}-[A-Z]{4})", process.stderr.readline())
            assert match is not None
            self.decide(match[1], decision)
            out, err = process.communicate(timeout=3 * DEADLINE_SECONDS)
            return process.returncode, out, err

    def decide(self, code: str, decision: str) -> None:
        page = self.browse("GET", "/auth/login").body.decode()
        token = re.search(r'name="token" value="([^"]+)"', page)
        assert token is not None
        self.browse("POST", "/auth/login", {"token": token[1], "name": "grace", "password": PASSWORD})
        form = {"user_code": code, "csrf": self.cookies[CSRF_COOKIE], "decision": decision}
        assert self.browse("POST", "/auth/device/decide", form).status == 200

    def browse(self, method: str, target: str, form: dict[str, str] | None = None) -> Reply:
        headers = [("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))]
        if form is not None:
            headers.append(("Content-Type", "application/x-www-form-urlencoded"))
        reply = self.gateway.send(method, target, *headers, body=None if form is None else urlencode(form).encode())
        for line in reply.headers.get_all("set-cookie", []):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        return reply


@pytest.fixture
def person(gateway: Gateway, tmp_path: Path) -> Iterator[Person]:
    UserStore(gateway.home).add("grace", PASSWORD, roles=("viewer",), groups=())
    yield Person(gateway, tmp_path / "configuration")
    UserStore(gateway.home).remove("grace")


def test_a_person_signs_the_command_in_and_out(person: Person) -> None:
    code, out, err = person.login("approve")
    assert code == 0, err
    told = json.loads(out)
    assert told["name"] == "grace"
    file = Path(told["file"])
    assert file.is_relative_to(person.configuration)
    assert file.stat().st_mode & 0o777 == 0o600
    secret = json.loads(file.read_bytes())["secret"]
    assert secret not in out + err
    # Every verb uses it by itself.
    code, out, _ = person.run("whoami", "--json")
    me = json.loads(out)
    assert (code, me["name"], me["roles"], me["credential"]) == (0, "grace", ["viewer"], told["session"])
    assert person.gateway.send("GET", "/v1/jobs", token=secret).status == 200
    code, out, _ = person.run("logout")
    assert (code, out.startswith("signed out")) == (0, True)
    assert not file.exists()
    assert person.gateway.send("GET", "/v1/jobs", token=secret).status == 401
    assert person.run("whoami")[0] == 2


def test_a_login_that_is_denied_in_the_browser_is_reported(person: Person) -> None:
    code, out, err = person.login("deny")
    assert (code, out) == (1, "")
    assert "refused" in err
    assert not person.configuration.exists()
