"""How the processes of the auth service and of Envoy start, refuse to start, and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from sluice.core.errors import StoreError
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.core.unix_socket import listen_unix
from sluice.gateway.config import EDGE_NAME, ENVOY_NAME, GatewayConfig
from sluice.gateway.credentials.token_file import token_file
from sluice.gateway.errors import (
    EnvoyFailed,
    EnvoyIdentityError,
    GatewayError,
    ListenError,
)
from sluice.gateway.service import route_file, run_auth, run_envoy
from sluice.pki.spiffe_id import Role
from tests.integration.gateway.conftest import ROUTES, TRUST_DOMAIN, EdgeAuthority, Gateway, eventually
from tests.processes import command_line, descendants

ANY_PORT = GatewayConfig(port=0)
RUN_ENVOY = """
import asyncio, sys
from pathlib import Path
from sluice.gateway.config import GatewayConfig
from sluice.gateway.service import run_auth
from sluice.gateway.service import run_envoy
from sluice.core.home import Home

async def main(home, trust_domain):
    config = GatewayConfig(port=0)
    await asyncio.gather(run_auth(home, config, trust_domain), run_envoy(home, config, trust_domain))

asyncio.run(main(Home.at(Path(sys.argv[1])), sys.argv[2]))
"""


@pytest.fixture
def home(short_home: Home, edge_authority: EdgeAuthority) -> Home:
    """A home that is ready for both processes."""
    edge_authority.issue(short_home.identity(Role.GATEWAY, EDGE_NAME))
    write_secret(route_file(short_home), json.dumps(ROUTES).encode())
    return short_home


async def test_port_in_use_is_named(home: Home, gateway: Gateway) -> None:
    with pytest.raises(ListenError, match=f"port {gateway.port} on 127.0.0.1 is already in use"):
        await run_envoy(home, GatewayConfig(port=gateway.port), TRUST_DOMAIN)


async def test_a_port_shared_by_another_program_with_so_reuseport_is_refused(home: Home) -> None:
    """SO_REUSEPORT would let two servers take turns behind one port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ListenError, match="already in use"):
            await run_envoy(home, GatewayConfig(port=other.getsockname()[1]), TRUST_DOMAIN)


async def test_envoy_does_not_start_without_its_certificate(short_home: Home) -> None:
    with pytest.raises(StoreError, match=r"\.pem: no such file"):
        await run_envoy(short_home, ANY_PORT, TRUST_DOMAIN)


@pytest.fixture
async def auth(home: Home) -> AsyncIterator[None]:
    """A running auth service, from which Envoy gets its configuration."""
    running = asyncio.create_task(run_auth(home, ANY_PORT, TRUST_DOMAIN))
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.usefixtures("auth")
async def test_home_of_earlier_versions_keeps_working(home: Home) -> None:
    """There the public certificate was stored where the internal one is now."""
    home.identity(Role.GATEWAY, EDGE_NAME).rename(home.identity(Role.GATEWAY, ENVOY_NAME))
    running = asyncio.create_task(run_envoy(home, ANY_PORT, TRUST_DOMAIN))
    await until(lambda: (home.run / "endpoints" / "envoy.json").exists() or running.done())
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_envoy_does_not_serve_its_internal_certificate(home: Home, edge_authority: EdgeAuthority) -> None:
    edge_authority.issue_internal(home.identity(Role.GATEWAY, EDGE_NAME))
    with pytest.raises(EnvoyIdentityError, match="holds the gateway's internal certificate"):
        await run_envoy(home, ANY_PORT, TRUST_DOMAIN)


async def test_envoy_does_not_connect_to_rest_with_its_public_certificate(
    home: Home, edge_authority: EdgeAuthority
) -> None:
    edge_authority.issue(home.identity(Role.GATEWAY, ENVOY_NAME))
    with pytest.raises(EnvoyIdentityError, match="holds the gateway's public certificate"):
        await run_envoy(home, ANY_PORT, TRUST_DOMAIN, rest=("127.0.0.1", 1))


async def test_envoy_does_not_start_without_an_identity_for_the_network(home: Home) -> None:
    with pytest.raises(StoreError, match=r"\.pem: no such file"):
        await run_envoy(home, ANY_PORT, TRUST_DOMAIN, rest=("127.0.0.1", 1))


@pytest.mark.usefixtures("auth")
async def test_second_envoy_leaves_the_files_of_the_first_alone(home: Home) -> None:
    first = asyncio.create_task(run_envoy(home, ANY_PORT, TRUST_DOMAIN))
    await until(lambda: (home.run / "endpoints" / "envoy.json").exists() or first.done())
    with pytest.raises(StoreError, match="another process listens"):
        await run_envoy(home, ANY_PORT, TRUST_DOMAIN)
    assert (home.sockets / "sds.sock").exists()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_auth_service_does_not_listen_on_the_network_without_an_identity(home: Home) -> None:
    with pytest.raises(StoreError, match=r"\.pem: no such file"):
        await run_auth(home, GatewayConfig(auth_host="127.0.0.1", auth_port=0), TRUST_DOMAIN)


async def test_envoy_does_not_start_with_a_certificate_of_another_trust_domain(home: Home) -> None:
    with pytest.raises(EnvoyIdentityError, match="not of a gateway"):
        await run_envoy(home, ANY_PORT, "elsewhere.test")


@pytest.mark.usefixtures("auth")
async def test_an_envoy_that_exits_unexpectedly_is_an_error_and_its_endpoint_is_removed(home: Home) -> None:
    running = asyncio.create_task(run_envoy(home, ANY_PORT, TRUST_DOMAIN))
    endpoint = home.run / "endpoints" / "envoy.json"
    await until(lambda: endpoint.exists() or running.done())
    envoys_of(os.getpid(), home)[0].kill()
    with pytest.raises(EnvoyFailed, match="exited unexpectedly"):
        await running
    assert not endpoint.exists()
    assert not (home.sockets / "sds.sock").exists()


@pytest.mark.usefixtures("auth")
async def test_cancelling_ends_envoy(home: Home) -> None:
    running = asyncio.create_task(run_envoy(home, ANY_PORT, TRUST_DOMAIN))
    await until(lambda: (home.run / "endpoints" / "envoy.json").exists() or running.done())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert envoys_of(os.getpid(), home) == []


def test_envoy_dies_when_its_parent_is_killed(home: Home) -> None:
    parent = subprocess.Popen([sys.executable, "-c", RUN_ENVOY, str(home.root), TRUST_DOMAIN], cwd=Path.cwd())
    try:
        endpoint = home.run / "endpoints" / "envoy.json"
        eventually(lambda: endpoint.exists() or parent.poll() is not None, "Envoy does not come up")
        (envoy,) = envoys_of(parent.pid, home)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        eventually(lambda: not envoy.is_running(), "Envoy outlives its parent")
    finally:
        parent.kill()
        parent.wait()


async def test_sockets_left_by_a_killed_process_do_not_prevent_a_start(home: Home) -> None:
    """Sockets stay behind after SIGKILL."""
    for name in ("auth.sock", "xds.sock", "sds.sock", "envoy-admin.sock"):
        listen_unix(home.sockets / name).close()
    auth = asyncio.create_task(run_auth(home, ANY_PORT, TRUST_DOMAIN))
    envoy = asyncio.create_task(run_envoy(home, ANY_PORT, TRUST_DOMAIN))
    await until(lambda: (home.run / "endpoints" / "envoy.json").exists() or envoy.done() or auth.done())
    assert not auth.done()
    assert not envoy.done()
    for task in (envoy, auth):
        task.cancel()
    await asyncio.gather(envoy, auth, return_exceptions=True)


async def test_second_auth_service_does_not_start(home: Home) -> None:
    first = asyncio.create_task(run_auth(home, ANY_PORT, TRUST_DOMAIN))
    await until(lambda: (home.sockets / "auth.sock").exists() or first.done())
    with pytest.raises(StoreError, match="another process listens"):
        await run_auth(home, ANY_PORT, TRUST_DOMAIN)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not (home.sockets / "auth.sock").exists()


async def test_auth_service_does_not_take_a_socket_from_another_process(home: Home) -> None:
    with listen_unix(home.sockets / "auth.sock"), pytest.raises(StoreError, match="another process listens"):
        await run_auth(home, ANY_PORT, TRUST_DOMAIN)


async def test_auth_service_does_not_start_without_a_route_list(short_home: Home) -> None:
    with pytest.raises(StoreError, match=r"routes\.json does not exist"):
        await run_auth(short_home, ANY_PORT, TRUST_DOMAIN)


async def test_auth_service_does_not_start_with_a_damaged_token_file(home: Home) -> None:
    write_secret(token_file(home), b"{")
    with pytest.raises(GatewayError, match="damaged"):
        await run_auth(home, ANY_PORT, TRUST_DOMAIN)


async def until(condition: Callable[[], object]) -> None:
    """Poll in a thread, so that the event loop that the condition depends on keeps running."""
    await asyncio.to_thread(eventually, condition, "the process does not come up")


def envoys_of(parent: int, home: Home) -> list[psutil.Process]:
    """The Envoy processes that ``parent`` runs for ``home``."""
    return [child for child in descendants(parent) if any(str(home.root) in part for part in command_line(child))]
