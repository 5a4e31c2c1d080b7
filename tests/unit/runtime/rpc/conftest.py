"""Fixtures for an RPC service without sockets, whose endpoints are called within the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.rpc import RpcEndpoint, RpcService
from tests.hostile import TestPki


@pytest.fixture(scope="session")
def jobmanager_identity(tmp_path_factory: pytest.TempPathFactory) -> TlsIdentity:
    root: Path = tmp_path_factory.mktemp("pki")
    return TestPki(root).process(Role.JOBMANAGER, "jm")


@pytest.fixture
def failures() -> list[tuple[RpcEndpoint, BaseException]]:
    """The failed endpoints and their errors, as reported to the service."""
    return []


@pytest_asyncio.fixture
async def service(
    jobmanager_identity: TlsIdentity, failures: list[tuple[RpcEndpoint, BaseException]]
) -> AsyncIterator[RpcService]:
    made = RpcService(jobmanager_identity, on_failure=lambda endpoint, error: failures.append((endpoint, error)))
    yield made
    await made.close()
