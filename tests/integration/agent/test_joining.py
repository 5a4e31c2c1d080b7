"""Runs ``sluice pki agent --ca``: the agent of a node whose authority is on another machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.pki.agent.policy import PolicyError, load_policy
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.config import PkiConfig
from sluice.pki.enrolment.remote_agent import check_joinable
from sluice.pki.identities.directory import CHAIN_FILE, read_certificates, read_identity
from sluice.pki.identities.join_tokens import mint
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.agent.conftest import BUNDLE
from tests.integration.agent.test_command import Command, _patiently
from tests.issued import issued_online
from tests.waiting import until

WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


@pytest.fixture
async def command(open_directory: Path) -> AsyncIterator[Command]:
    """Provides the agent command for a home without authorities; kills its processes at the end."""
    made = Command(open_directory)
    yield made
    for process in made.started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_the_agent_joins_a_remote_ca_serves_a_spiffe_client_and_gets_crls(
    command: Command, tmp_path: Path
) -> None:
    pki = TestPki(tmp_path)
    async with online_ca(pki.home, pki.config, CaConfig()) as address:
        record, text = mint(WORKER, AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL), now=utc_now())
        TokenStore(pki.home.pki).add(record, now=utc_now())
        token = tmp_path / "token"
        write_secret(token, text.encode())
        where = f"{address.mutual[0]}:{address.mutual[1]},{address.enrolment[1]}"
        process = await command.agent("--ca", where, "--join-token-file", f"taskmanager/tm-1={token}")
        await until(command.socket.exists, "no socket")
        assert await asyncio.to_thread(_patiently, command) == f"{BUNDLE}/taskmanager/tm-1"
        directory = Home.at(command.home).identity(Role.TASKMANAGER, "tm-1")
        await until((directory / "crl.pem").exists, "no revocation list")
        assert not token.exists()
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors
    assert text.split("_")[2].encode() not in errors
    [issued] = list(issued_online(pki.home.pki))
    assert (issued.kind, issued.identity) == ("enrolment", str(WORKER))
    assert not (Home.at(command.home).pki / "authorities").exists()
    assert read_identity(directory)[0].leaf == read_certificates(directory / CHAIN_FILE)[0]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--join-token-file", "taskmanager/tm-2=token"), id="of nobody in the policy"),
        pytest.param(("--ca", "nowhere"), id="no address"),
    ],
)
async def test_invalid_options_are_reported_before_the_agent_starts(options: tuple[str, ...], command: Command) -> None:
    done = await asyncio.to_thread(sluice, "pki", "agent", *command.options, "--ca", "127.0.0.1:9", *options)
    assert done.returncode == 2, done.stderr
    assert not command.socket.exists()


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"id": "user/ada"}, id="a user"),
        pytest.param({"id": f"job/{'a' * 32}/driver"}, id="a driver"),
        pytest.param({"id": "ca/ca-2"}, id="another authority"),
        pytest.param({"id": "taskmanager/tm-1", "lifetime_minutes": 30}, id="a lifetime of its own"),
    ],
)
def test_a_policy_that_the_authority_cannot_serve_is_refused(entry: dict[str, object], tmp_path: Path) -> None:
    lines = "".join(f"{key} = {value!r}\n" for key, value in entry.items())
    path = tmp_path / "agent.toml"
    path.write_text(f"[[identity]]\nuids = [{os.geteuid()}]\n{lines}")
    path.chmod(0o600)
    with pytest.raises(PolicyError):
        check_joinable(load_policy(path, PkiConfig(), tmp_path))
