"""Executors talk only to the shuffle worker they were given; hostile workers do not even get a HELLO."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.messages import ShuffleAllocation, WorkerAddress
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki
from tests.system.shuffle.cluster import Cluster, cluster

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

WORKER = SpiffeId.process(TRUST_DOMAIN, Role.SHUFFLE_WORKER, "shuffle-worker-1")
HOSTILE = [
    Hostile.SELF_SIGNED, Hostile.FOREIGN_CA, Hostile.EDGE_CERTIFICATE, Hostile.SIGNED_BY_LEAF, Hostile.EXPIRED,
    Hostile.NOT_YET_VALID, Hostile.WRONG_ROLE, Hostile.WRONG_EKU, Hostile.NO_EKU, Hostile.FOREIGN_TRUST_DOMAIN,
    Hostile.NO_SPIFFE_ID, Hostile.TWO_SPIFFE_IDS,
]  # fmt: skip


@dataclass
class Impostor:
    """A server in place of a worker; it records what it is sent."""

    address: WorkerAddress
    told: bytes = b""

    def allocate(self, context: int, shuffle_id: int) -> ShuffleAllocation:
        """Allocate every shuffle to the impostor."""
        return ShuffleAllocation((context << 20) + shuffle_id, (self.address,), 1, secrets.token_bytes(8))

    def release(self, job_id: str, context: int, shuffle_id: int) -> None:
        """Does nothing, since the impostor keeps no shuffles."""


@asynccontextmanager
async def impostor(identity: Path | None, *, tls12: bool = False, asks: bool = True) -> AsyncIterator[Impostor]:
    """Run an impostor with the certificate in ``identity``, or in plaintext without one.

    ``asks`` tells whether it requests the client's certificate.
    """
    context = None
    if identity is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity / "chain.pem", identity / "key.pem")
        context.load_verify_locations(identity / "ca.pem")
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the anchor is an intermediate authority
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        if tls12:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
    found: list[Impostor] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            found[0].told += await reader.read(1 << 16)
        except (OSError, ssl.SSLError):
            found[0].told += b""
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        port = server.sockets[0].getsockname()[1]
        found.append(Impostor(WorkerAddress(WORKER.name, "127.0.0.1", port)))
        yield found[0]
    finally:
        server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def job(tmp_path_factory: pytest.TempPathFactory, pki: TestPki, spark: SparkRuntime) -> AsyncIterator[Cluster]:
    """A job that fails at the first failed task."""
    async with cluster(tmp_path_factory.mktemp("peers"), pki, spark, {"spark.task.maxFailures": "1"}) as started:
        yield started


async def refusal(job: Cluster, server: Impostor) -> str:
    """The error with which the job fails when the impostor is its worker."""
    job.job.shuffle = server
    answer = json.loads(await job.job.ask(json.dumps({"run": "kinds.rdd_reduce"})))
    assert "result" not in answer
    return str(answer["error"])


@pytest.mark.parametrize("case", HOSTILE)
async def test_worker_with_a_hostile_certificate_is_refused(job: Cluster, pki: TestPki, case: Hostile) -> None:
    async with impostor(pki.hostile(case, pretending=WORKER).directory) as server:
        assert "shuffle-worker-1 cannot be reached" in await refusal(job, server)
        assert server.told == b""


async def test_another_worker_in_the_place_of_the_given_one_is_refused(job: Cluster, pki: TestPki) -> None:
    other = SpiffeId.process(TRUST_DOMAIN, Role.SHUFFLE_WORKER, "shuffle-worker-2")
    async with impostor(pki.directory(other)) as server:
        assert "answers in the place of shuffle-worker-1" in await refusal(job, server)
        assert server.told == b""


async def test_worker_that_requests_no_client_certificate_is_refused(job: Cluster, pki: TestPki) -> None:
    async with impostor(pki.directory(WORKER), asks=False) as server:
        assert "a handshake without certificates" in await refusal(job, server)
        assert server.told == b""


async def test_worker_with_tls_1_2_is_refused(job: Cluster, pki: TestPki) -> None:
    async with impostor(pki.directory(WORKER), tls12=True) as server:
        assert "shuffle-worker-1 cannot be reached" in await refusal(job, server)
        assert server.told == b""


async def test_plaintext_worker_receives_only_a_client_hello(job: Cluster) -> None:
    async with impostor(None) as server:
        assert "shuffle-worker-1 cannot be reached" in await refusal(job, server)
        assert server.told.startswith(b"\x16\x03")
        assert b"push" not in server.told


async def test_honest_worker_in_the_same_place_receives_the_frames(job: Cluster, pki: TestPki) -> None:
    async with impostor(pki.directory(WORKER)) as server:
        await refusal(job, server)
        assert server.told.startswith(b"SLC1")
        assert b"push" in server.told
