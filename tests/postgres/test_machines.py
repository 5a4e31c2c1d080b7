"""Real Envoys and auth services on two machines with one database: kills and revocations."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from sluice.core import Home, write_secret
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.credentials import TokenStore
from sluice.gateway.shared_store import new_key
from tests.integration.gateway.conftest import (
    BackgroundLoop,
    EdgeAuthority,
    eventually,
)
from tests.integration.gateway.network import Generation
from tests.postgres.machines import MachinesGateway
from tests.postgres.server import Server
from tests.system.gateway.test_several_auth_services import kept_connections, load_of, statuses

KILLS = 20


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    """Provide a PostgreSQL server for this module alone, because tests stop it."""
    place = Path(tempfile.mkdtemp(prefix="sluice-pg-"))
    place.chmod(0o755)
    running = Server(place / "server", trustme.CA())
    try:
        running.make()
        yield running
    finally:
        with contextlib.suppress(AssertionError):
            running.stop("immediate")
        shutil.rmtree(place)


@pytest.fixture(scope="module")
def gateway(
    edge_authority: EdgeAuthority,
    background: BackgroundLoop,
    database: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MachinesGateway]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    key = directory / "encryption.key"
    write_secret(key, new_key())
    store = SharedStoreConfig(
        hosts=(f"127.0.0.1:{database.port}",),
        ca_file=str(database.ca_file),
        certificate_file=str(database.certificate_file),
        key_file=str(database.key_file),
        password_file=str(database.password_file),
        encryption_key_file=str(key),
    )
    generation = Generation(tmp_path_factory.mktemp("authorities"))
    machines = MachinesGateway(Home.at(directory / "edge"), edge_authority, background, generation, store)
    try:
        machines.start()
        yield machines
    finally:
        machines.stop()
        shutil.rmtree(directory)


@pytest.mark.timeout(600)
def test_a_token_revoked_on_one_machine_is_refused_on_every_machine(gateway: MachinesGateway) -> None:
    """An API token, and access tokens, which Envoy checks alone. Also while one auth service is down."""
    for dead in (False, True):
        record, token = TokenStore(gateway.homes["auth-a"]).create("ada", "viewer", dt.timedelta(hours=1))
        reply = gateway.send("POST", "/auth/exchange", token=token, body=b"")
        assert reply.status == 200, reply.body
        made = str(json.loads(reply.body)["pass"])
        with kept_connections(gateway) as connections:
            assert statuses(gateway, connections, token) == statuses(gateway, connections, made) == {200}
            if dead:
                gateway.auths[0].kill()
            TokenStore(gateway.home).revoke(record.id)
            began = time.monotonic()
            eventually(lambda: 200 not in statuses(gateway, connections, token), "the token is taken")  # noqa: B023
            eventually(lambda: 200 not in statuses(gateway, connections, made), "the access token is taken")  # noqa: B023
            print(f"refused everywhere after {time.monotonic() - began:.2f} s")  # noqa: T201
            assert 200 not in statuses(gateway, connections, made)
    gateway.auths[0].start()


@pytest.mark.timeout(1200)
def test_a_killed_auth_service_fails_no_request(gateway: MachinesGateway) -> None:
    load = load_of(gateway)
    with load.running():
        for number in range(KILLS):
            victim = gateway.auths[number % 2]
            load.more(20)
            victim.kill()
            load.more(60)
            victim.start()
    print(f"{KILLS} kills of an auth service: {load.answered} answered, slowest {load.slowest:.2f} s")  # noqa: T201
    assert load.refused == []
    assert load.broken == []


@pytest.mark.timeout(600)
def test_no_new_credential_is_admitted_without_the_database(gateway: MachinesGateway, database: Server) -> None:
    _, token = TokenStore(gateway.home).create("grace", "viewer", dt.timedelta(hours=1))
    assert gateway.send("GET", "/v1/jobs", token=token).status == 200
    database.stop()
    try:
        eventually(lambda: gateway.send("GET", "/v1/jobs", token=token).status == 503, "it is let in")
    finally:
        database.start()
    eventually(lambda: gateway.send("GET", "/v1/jobs", token=token).status == 200, "it does not come back")
