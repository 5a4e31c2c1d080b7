"""The blob channel and a TaskManager that is revoked while its connection is open."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from sluice.core.clock import utc_now
from sluice.pki.channels import Channel, server_policy
from sluice.pki.identities.directory import read_certificates
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.blob.client import fetch_blob
from sluice.runtime.blob.errors import BlobUnavailable
from sluice.runtime.blob.server import BlobServer
from sluice.runtime.blob.store import BlobStore
from tests.hostile import TRUST_DOMAIN, TestPki

JOB = "0123456789abcdef" * 2
CONTENT = b"x" * 100_000
INTERNAL = AuthorityKind.INTERNAL


def revoke(pki: TestPki, bad: TlsIdentity, told: TlsIdentity) -> None:
    leaf = read_certificates(bad.directory / "chain.pem")[0]
    pki.issuer.revocations.revoke(INTERNAL, [RevocationTarget.of(leaf)], Reason.KEY_COMPROMISE)
    current = pki.issuer.revocations.current(INTERNAL)
    assert current is not None
    install_crls(told.directory, current.pem, utc_now())


@pytest.mark.parametrize("revoked", ["client", "server"])
async def test_a_revoked_peer_of_an_open_connection_gets_and_serves_no_more_blobs(tmp_path: Path, revoked: str) -> None:
    pki = TestPki(tmp_path)
    store = BlobStore(tmp_path / "blobs", 10_000_000)
    with store.writer(JOB, "pipeline.py") as writer:
        writer.write(CONTENT)
        ref = writer.commit()
    identity, client = pki.process(Role.JOBMANAGER), pki.identity(SpiffeId.driver(TRUST_DOMAIN, JOB))
    server = BlobServer(identity, store)
    host, port = await server.start("127.0.0.1", 0)
    url = f"https://{host}:{port}/v1/blobs/{JOB}/{ref.sha256}"
    policy = server_policy(Channel.BLOB, TRUST_DOMAIN, role=Role.JOBMANAGER)
    connector = aiohttp.TCPConnector(ssl=client.client_context(policy, alpn=("http/1.1",)), limit=1)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.get(url) as response:
                assert await response.read() == CONTENT
            if revoked == "client":
                revoke(pki, client, identity)
            else:
                revoke(pki, identity, client)

            async def fetch_on() -> None:
                while True:
                    async with session.get(url) as response:
                        await response.read()

            with pytest.raises(aiohttp.ClientError):
                await fetch_on()
        with pytest.raises(BlobUnavailable):
            await fetch_blob(client, host, port, JOB, ref, tmp_path / "target")
    finally:
        await server.close()
