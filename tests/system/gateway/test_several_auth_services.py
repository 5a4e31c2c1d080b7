"""Two auth services behind two Envoys: what one of them did counts at the other, and either may be killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.principal import AccessRole
from tests.free_ports import free_port
from tests.integration.gateway.conftest import BackgroundLoop, EdgeAuthority
from tests.integration.gateway.test_passes_at_the_door import pass_of
from tests.system.gateway.replicated import Load, ReplicatedGateway

KILLS = 20


@pytest.fixture(scope="module")
def replicated(edge_authority: EdgeAuthority, background: BackgroundLoop) -> Iterator[ReplicatedGateway]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    config = GatewayConfig(
        port=free_port(),
        auth_services=2,
        envoys=2,
        authorization_timeout=5.0,
        address_requests_per_second=1e6,
        principal_requests_per_second=1e6,
    )
    gateway = ReplicatedGateway(Home.at(directory), edge_authority, background, config)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


def asking(method: str, target: str, credential: str) -> bytes:
    length = "" if method == "GET" else "Content-Length: 0\r\n"
    return (
        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {credential}\r\n{length}\r\n".encode()
    )


def load_of(gateway: ReplicatedGateway) -> Load:
    """Clients of every kind: an opaque token, which is asked about; a pass; what changes something; ``/auth/``."""
    token = gateway.token(AccessRole.ADMIN)
    text, _ = pass_of(gateway, "viewer")
    return Load(
        gateway,
        [
            asking("GET", "/v1/jobs", token),
            asking("GET", "/v1/jobs", text),
            asking("POST", "/v1/jobs", token),
            asking("POST", "/auth/exchange", token),
        ],
    )


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_killed_auth_service_fails_no_request(replicated: ReplicatedGateway) -> None:
    load = load_of(replicated)
    with load.running():
        for number in range(KILLS):
            victim = replicated.auths[number % 2]
            load.more(50)
            victim.kill()
            load.more(100)
            victim.start()
    print(f"{KILLS} kills of an auth service: {load.answered} answered, slowest {load.slowest:.2f} s")  # noqa: T201
    assert load.refused == []
    assert load.broken == []


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_killed_envoy_fails_only_what_was_on_its_connections(replicated: ReplicatedGateway) -> None:
    load = load_of(replicated)
    with load.running():
        for number in range(KILLS):
            victim = replicated.envoys[number % 2]
            load.more(50)
            victim.kill()
            load.more(100)
            victim.start()
    print(f"{KILLS} kills of an Envoy: {load.answered} answered, {len(load.broken)} on killed connections")  # noqa: T201
    assert load.refused == []
    # Each of the four clients is on one connection at a time.
    assert len(load.broken) <= 4 * KILLS
