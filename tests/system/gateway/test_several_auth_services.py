"""Two auth services behind two Envoys.

What one auth service did takes effect at the other, and either may be killed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.envoy_config.limits import BURST_SECONDS
from sluice.gateway.principal import AccessRole
from tests.free_ports import free_port
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import BackgroundLoop, EdgeAuthority, eventually
from tests.system.gateway.replicated import Load, ReplicatedGateway

KILLS = 20


@contextlib.contextmanager
def running(authority: EdgeAuthority, loop: BackgroundLoop, *, per_second: float = 1e6) -> Iterator[ReplicatedGateway]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    config = GatewayConfig(
        port=free_port(),
        auth_services=2,
        envoys=2,
        authorization_timeout=20.0,  # a connection that breaks is noticed at once; a loaded machine is not
        address_requests_per_second=per_second,
        principal_requests_per_second=1e6,
    )
    gateway = ReplicatedGateway(Home.at(directory), authority, loop, config)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def replicated(edge_authority: EdgeAuthority, background: BackgroundLoop) -> Iterator[ReplicatedGateway]:
    with running(edge_authority, background) as gateway:
        yield gateway


def asking(method: str, target: str, credential: str) -> bytes:
    length = "" if method == "GET" else "Content-Length: 0\r\n"
    return (
        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {credential}\r\n{length}\r\n".encode()
    )


def load_of(gateway: ReplicatedGateway) -> Load:
    """Return a load of clients of every kind.

    They use an opaque token, an access token, a request that changes something, and a request to ``/auth/``.
    """
    token = gateway.token(AccessRole.ADMIN)
    kept, until = "", 0.0

    def by_access_token() -> bytes:
        nonlocal kept, until
        if time.monotonic() > until:  # it lives for minutes, and the test for longer
            kept, until = access_token_of(gateway, "viewer")[0], time.monotonic() + 60
        return asking("GET", "/v1/jobs", kept)

    return Load(
        gateway,
        [
            lambda: asking("GET", "/v1/jobs", token),
            by_access_token,
            lambda: asking("POST", "/v1/jobs", token),
            lambda: asking("POST", "/auth/exchange", token),
        ],
    )


@contextlib.contextmanager
def kept_connections(gateway: ReplicatedGateway) -> Iterator[list[ssl.SSLSocket]]:
    """Open enough connections that both Envoys have some."""
    with contextlib.ExitStack() as stack:
        opened: list[ssl.SSLSocket] = []

        def enough() -> bool:
            opened.append(stack.enter_context(gateway.connect()))
            return len(opened) >= 12 and all(gateway.open_connections(name) for name in ("envoy", "envoy-2"))

        eventually(enough, "one Envoy gets no connections")
        yield opened


def statuses(gateway: ReplicatedGateway, connections: list[ssl.SSLSocket], credential: str) -> set[int]:
    """Send a request on each connection; return the set of statuses."""
    found = set()
    for connection in connections:
        connection.sendall(asking("GET", "/v1/jobs", credential))
        found.add(gateway.read(connection).status)
    return found


@pytest.mark.timeout(600)
def test_a_revoked_token_is_refused_on_every_open_connection_of_both_envoys(replicated: ReplicatedGateway) -> None:
    """An API token, and access tokens, which Envoy checks alone. Also while one auth service is down."""
    victim = replicated.auths[0]
    for dead in (False, True):
        record, token = TokenStore(replicated.home).create("ada", "viewer", dt.timedelta(hours=1))
        reply = replicated.send("POST", "/auth/exchange", token=token, body=b"")
        made = str(json.loads(reply.body)["pass"])
        with kept_connections(replicated) as connections:
            assert statuses(replicated, connections, token) == statuses(replicated, connections, made) == {200}
            if dead:
                victim.kill()
            TokenStore(replicated.home).revoke(record.id)
            began = time.monotonic()
            assert statuses(replicated, connections, token) == {401}
            eventually(lambda: 200 not in statuses(replicated, connections, made), "the access token is taken")  # noqa: B023
            print(f"refused everywhere after {time.monotonic() - began:.2f} s")  # noqa: T201
            # They are the connections of before: neither Envoy has replaced its listeners.
            assert 200 not in statuses(replicated, connections, made)
    victim.start()


@pytest.mark.timeout(600)
def test_an_auth_service_that_hangs_only_delays_requests(replicated: ReplicatedGateway) -> None:
    token = replicated.token(AccessRole.ADMIN)
    with replicated.auths[1].suspended():
        assert {replicated.send("GET", "/v1/jobs", token=token).status for _ in range(4)} == {200}


@pytest.mark.timeout(600)
def test_two_envoys_together_grant_no_more_than_the_limit(
    edge_authority: EdgeAuthority, background: BackgroundLoop
) -> None:
    rate = 2
    with running(edge_authority, background, per_second=rate) as gateway:
        text, _ = access_token_of(gateway, "viewer")
        began = time.monotonic()
        found = Counter(gateway.send("GET", "/v1/jobs", token=text).status for _ in range(60))
        seconds = time.monotonic() - began
        print(f"{found[200]} of 60 granted in {seconds:.1f} s at {rate} per second")  # noqa: T201
        assert found[429]
        assert found[200] <= rate * (BURST_SECONDS + seconds) + 2 * len(gateway.envoys)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_killed_auth_service_fails_no_request(replicated: ReplicatedGateway) -> None:
    load = load_of(replicated)
    with load.running():
        for number in range(KILLS):
            victim = replicated.auths[number % 2]
            load.more(20)
            victim.kill()
            load.more(60)
            victim.start()
    print(f"{KILLS} kills of an auth service: {load.answered} answered, slowest {load.slowest:.2f} s")  # noqa: T201
    assert load.refused == []
    assert load.broken == []


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_killed_envoy_fails_only_requests_on_its_own_connections(replicated: ReplicatedGateway) -> None:
    load = load_of(replicated)
    with load.running():
        for number in range(KILLS):
            victim = replicated.envoys[number % 2]
            load.more(20)
            victim.kill()
            load.more(60)
            victim.start()
    print(f"{KILLS} kills of an Envoy: {load.answered} answered, {len(load.broken)} on killed connections")  # noqa: T201
    assert load.refused == []
    # Each of the four clients is on one connection at a time.
    assert len(load.broken) <= 4 * KILLS
