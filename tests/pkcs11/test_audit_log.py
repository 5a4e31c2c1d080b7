"""An audit log whose key is in SoftHSM.

The operator begins it; commands and a cluster's processes write it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.audit_log.log import audit_directory
from sluice.gateway.audit_log.verification import read_records
from tests.pkcs11.conftest import ROOT, Command, Token
from tests.waiting import wait_until

Process = Callable[..., subprocess.CompletedProcess[str]]


def private_keys(token: Token) -> list[str]:
    return [label for kind, label in token.objects() if kind == "PRIVATE_KEY"]


@contextlib.contextmanager
def taken_away(token: Token) -> Iterator[None]:
    """Hide all tokens from the module within the block."""
    tokens = token.hsm.tokens
    away = tokens.with_name("taken-away")
    tokens.rename(away)
    tokens.mkdir()
    try:
        yield
    finally:
        tokens.rmdir()
        away.rename(tokens)


@pytest.fixture
def process(home: Path) -> Process:
    """Runs ``sluice …`` in a separate process, which has no session with a token yet."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "sluice.cli.main", *arguments]
        environment = {**os.environ, "SLUICE_HOME": str(home), "COLUMNS": "200"}
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def key_id(good: Command, token: Token) -> str:
    """The id of the key in the token; an audit log has been begun with it."""
    begun = json.loads(good("audit-log", "init", "--key", token.uri, "--json").stdout)
    assert begun["begun"]
    return str(begun["key_id"])


def test_commands_write_a_log_that_the_token_signs(
    key_id: str, good: Command, process: Process, token: Token, home: Path
) -> None:
    again = json.loads(good("audit-log", "init", "--key", token.uri, "--json").stdout)
    assert (again["begun"], again["key_id"]) == (False, key_id)
    assert private_keys(token) == ["sluice sluice.local audit log"]
    assert process("token", "create", "ci", "--role", "viewer").returncode == 0
    with taken_away(token):
        refused = process("token", "create", "other", "--role", "viewer")
        assert refused.returncode != 0
        assert "is not there" in refused.stderr
    directory = audit_directory(Home.at(home))
    assert not (directory / "signing-key.pem").exists()
    assert [each.kind for each in read_records(directory) if each.kind] == ["token.created"]
    assert json.loads(good("audit-log", "verify", "--key-id", key_id, "--json").stdout)["unsigned"] == 0


def test_cluster_serves_requests_only_while_the_token_signs_the_log(
    key_id: str, good: Command, process: Process, token: Token, home: Path
) -> None:
    started = process("up", "--detach", "--port", "0", "--taskmanagers", "1")
    try:
        assert started.returncode == 0, started.stderr
        good("token", "create", "ada", "--role", "submitter", "--output", home / "token")
        served = process("jobs", "list")
        assert served.returncode == 0, served.stderr
        with taken_away(token):
            wait_until(lambda: process("jobs", "list").returncode != 0, "refusals without the token")
        wait_until(lambda: process("jobs", "list").returncode == 0, "answers with the token")
    finally:
        process("down")
    good("audit-log", "verify", "--key-id", key_id)
