"""Runs ``sluice pki agent`` as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spiffe import WorkloadApiClient

from tests.command import sluice
from tests.integration.agent.conftest import BUNDLE, OWN_UID
from tests.waiting import until

POLICY = f"""
[[identity]]
id = "taskmanager/tm-1"
uids = [{OWN_UID}]
audiences = ["reports"]
"""


class Command:
    """Starts ``sluice pki agent`` for one home, and records the processes it has started."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.socket = root / "run" / "agent.sock"
        self.policy = root / "agent.toml"
        self.policy.write_text(POLICY)
        self.policy.chmod(0o600)
        self.started: list[asyncio.subprocess.Process] = []

    @property
    def options(self) -> tuple[str, ...]:
        """The options for the policy file, the socket and the home."""
        return "--policy", str(self.policy), "--socket", str(self.socket), "--home", str(self.home)

    async def agent(self, *more: str) -> asyncio.subprocess.Process:
        """Start ``sluice pki agent`` as a separate process."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sluice.cli.main", "pki", "agent", *self.options, *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self.started.append(process)
        return process


@pytest.fixture
async def command(open_directory: Path) -> AsyncIterator[Command]:
    """Provides the agent command for a home with authorities; kills its processes at the end."""
    made = Command(open_directory)
    initialized = await asyncio.to_thread(sluice, "pki", "init", "--home", made.home)
    assert initialized.returncode == 0, initialized.stderr
    yield made
    for process in made.started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_the_agent_serves_again_after_a_kill_and_ends_cleanly_on_sigterm(command: Command) -> None:
    killed = await command.agent()
    await until(command.socket.exists, "no socket")
    assert await asyncio.to_thread(_patiently, command) == f"{BUNDLE}/taskmanager/tm-1"
    killed.kill()
    await killed.communicate()
    ended = await command.agent()
    assert await asyncio.to_thread(_patiently, command) == f"{BUNDLE}/taskmanager/tm-1"
    ended.send_signal(signal.SIGTERM)
    _, errors = await ended.communicate()
    assert ended.returncode == 0
    assert not command.socket.exists()
    assert b"PRIVATE KEY" not in errors
    assert b"Traceback" not in errors


def _patiently(command: Command) -> str:
    """Return the first identity that the agent serves.

    The library tries again while nothing serves the socket, before the agent starts or after it ends.
    """
    with WorkloadApiClient(f"unix:{command.socket}", default_timeout=10.0) as client:
        seen: list[str] = []
        handle = client.stream_x509_contexts(
            lambda context: seen.append(str(context.default_svid.spiffe_id)), lambda _: None
        )
        while not seen:
            handle.wait_cancelled(0.05)
        handle.cancel()
        return seen[0]


async def test_check_shows_the_policy_and_starts_nothing(command: Command) -> None:
    checked = await asyncio.to_thread(sluice, "pki", "agent", *command.options, "--check", "--json")
    (identity,) = json.loads(checked.stdout)["identities"]
    assert identity["identity"] == f"{BUNDLE}/taskmanager/tm-1"
    assert identity["uids"] == [OWN_UID]
    assert not command.socket.exists()


async def test_the_agent_exits_with_the_reason_when_its_policy_is_invalid(command: Command) -> None:
    command.policy.write_text("[[identity]]\nid = 'taskmanager/tm-1'\nuser = 'root'\n")
    process = await command.agent()
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"user" in errors
    assert not command.socket.exists()
