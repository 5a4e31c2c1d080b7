"""One PostgreSQL server for all tests, with an empty database for each, and homes as on several machines."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import trustme

from sluice.core import Home, write_secret
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.shared_store import SharedFiles, bind, binding, new_key
from tests.integration.gateway.conftest import background, edge_authority
from tests.postgres.server import Server

__all__ = ["background", "edge_authority"]

TABLES = ("sluice_head", "sluice_files", "sluice_entries")
Machine = Callable[..., tuple[Home, SharedFiles]]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    # Another user, as which the server runs, cannot enter pytest's own directories.
    place = Path(tempfile.mkdtemp(prefix="sluice-pg-"))
    place.chmod(0o755)
    running = Server(place / "server", trustme.CA())
    try:
        running.make()
        yield running
    finally:
        for _, files in binding._known.values():
            files.close()
        with contextlib.suppress(AssertionError):
            running.stop("immediate")
        shutil.rmtree(place)


@pytest.fixture
def config(server: Server, tmp_path: Path) -> SharedStoreConfig:
    """The settings with which auth services reach the database, which is empty."""
    key = tmp_path / "encryption.key"
    write_secret(key, new_key())
    for table in TABLES:
        server.sql(f"DROP TABLE IF EXISTS {table}", "sluice")
    return SharedStoreConfig(
        hosts=(f"127.0.0.1:{server.port}",),
        ca_file=str(server.ca_file),
        certificate_file=str(server.certificate_file),
        key_file=str(server.key_file),
        password_file=str(server.password_file),
        encryption_key_file=str(key),
    )


@pytest.fixture
def machine(config: SharedStoreConfig, tmp_path: Path) -> Iterator[Machine]:
    """Makes homes that share the database; keyword arguments are settings of the store."""
    with contextlib.ExitStack() as stack:

        def make(name: str, **settings: object) -> tuple[Home, SharedFiles]:
            home = Home.at(tmp_path / name)
            files = bind(home, msgspec.structs.replace(config, **settings))
            stack.callback(files.close)
            return home, files

        yield make
