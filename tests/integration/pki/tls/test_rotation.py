"""Certificates and trust anchors change under a running listener, without a restart and never halfway."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import shutil
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.errors import StoreError
from sluice.pki.channels import Channel, server_policy
from sluice.pki.identities.directory import read_certificates, write_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki, answer_of, assert_refused
from tests.integration.pki.conftest import Server, StartServer

JOBMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jobmanager-1")
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
POLICY = server_policy(Channel.RPC, TRUST_DOMAIN)


async def presented_serial(server: Server, client: TlsIdentity) -> int:
    """Serial number of the certificate that the listener shows to a new connection."""
    context = client.client_context(POLICY)
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=context)
    writer.write(b"ping")
    assert await reader.read(100) == b"ping"
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(der).serial_number


def serial_on_disk(directory: Path) -> int:
    return read_certificates(directory / "chain.pem")[0].serial_number


async def test_new_connections_get_the_renewed_certificate_and_old_ones_live_on(
    pki: TestPki, start_server: StartServer
) -> None:
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    before = await presented_serial(server, client)
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=client.client_context(POLICY))
    pki.issuer.issue_to(server.identity.directory, JOBMANAGER)
    after = await presented_serial(server, client)
    assert after == serial_on_disk(server.identity.directory) != before
    writer.write(b"still here")
    assert await reader.read(100) == b"still here"
    writer.transport.abort()


@pytest.mark.parametrize("half", ["key.pem", "chain.pem"])
async def test_half_written_set_leaves_the_previous_certificate_in_use(
    half: str, pki: TestPki, start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the renewing process dies between two renames; the next whole set is taken again."""
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    before = await presented_serial(server, client)
    newer = pki.directory(JOBMANAGER)
    (newer / half).replace(server.identity.directory / half)
    with caplog.at_level(logging.WARNING, logger="sluice.pki.tls.contexts"):
        assert await presented_serial(server, client) == before
        assert await presented_serial(server, client) == before
    warnings = [record for record in caplog.records if "keeping the current certificate" in record.message]
    assert len(warnings) == 1, "one warning for one bad set, however many connections come"
    pki.issuer.issue_to(server.identity.directory, JOBMANAGER)
    assert await presented_serial(server, client) == serial_on_disk(server.identity.directory) != before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("chain.pem", b"", id="empty-chain"),
        pytest.param("chain.pem", b"-----BEGIN CERTIFICATE-----\nAAAA", id="cut-chain"),
        pytest.param("ca.pem", b"not pem", id="damaged-anchors"),
        pytest.param("key.pem", b"\x00" * 100, id="damaged-key"),
        pytest.param("ca.pem", None, id="anchors-gone"),
        pytest.param("key.pem", None, id="key-gone"),
    ],
)
async def test_damaged_files_leave_the_previous_certificate_in_use(
    name: str, content: bytes | None, pki: TestPki, start_server: StartServer
) -> None:
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    before = await presented_serial(server, client)
    path = server.identity.directory / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert await presented_serial(server, client) == before


async def test_certificate_of_another_identity_is_not_taken(pki: TestPki, start_server: StartServer) -> None:
    """A process does not become somebody else because its files do."""
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    before = await presented_serial(server, client)
    pki.issuer.issue_to(server.identity.directory, TASKMANAGER)
    assert await presented_serial(server, client) == before
    assert server.identity.spiffe_id == JOBMANAGER


async def test_trust_anchors_rotate_under_a_running_listener(
    pki: TestPki, start_server: StartServer, tmp_path: Path
) -> None:
    """A, then A+B, then B: clients of A work until A is dropped, clients of B from when it is added."""
    server = await start_server()
    directory = server.identity.directory
    other = TestPki(tmp_path / "other")
    key, chain = (directory / "key.pem").read_bytes(), (directory / "chain.pem").read_bytes()
    anchors_a, anchors_b = (directory / "ca.pem").read_bytes(), (other.directory(TASKMANAGER) / "ca.pem").read_bytes()

    def client_of(issuing: TestPki) -> TlsIdentity:
        """A client that trusts both authorities and has its certificate from one of them."""
        made = issuing.directory(TASKMANAGER)
        write_identity(
            made,
            key_pem=(made / "key.pem").read_bytes(),
            chain_pem=(made / "chain.pem").read_bytes(),
            ca_pem=anchors_a + anchors_b,
        )
        return TlsIdentity(made)

    of_a, of_b = client_of(pki), client_of(other)

    async def answers(client: TlsIdentity) -> bool:
        return await answer_of(server.host, server.port, client.client_context(POLICY), hello=b"ping") == b"ping"

    assert (await answers(of_a), await answers(of_b)) == (True, False)
    write_identity(directory, key_pem=key, chain_pem=chain, ca_pem=anchors_a + anchors_b)
    assert (await answers(of_a), await answers(of_b)) == (True, True)
    write_identity(directory, key_pem=key, chain_pem=chain, ca_pem=anchors_b)
    assert (await answers(of_a), await answers(of_b)) == (False, True)


def moment(days: int) -> dt.datetime:
    """Return the time ``days`` days from now."""
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=days)


def test_process_whose_certificate_is_not_valid_now_does_not_start(pki: TestPki) -> None:
    directory = pki.directory(TASKMANAGER)
    for days, reason in ((400, "expired"), (-1, "not valid before")):
        with pytest.raises(StoreError, match=reason):
            TlsIdentity(directory, clock=partial(moment, days))


async def test_expired_renewal_is_not_taken(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    before = await presented_serial(server, client)
    expired = pki.hostile(Hostile.EXPIRED, pretending=JOBMANAGER).directory
    for name in ("key.pem", "chain.pem"):
        (expired / name).replace(server.identity.directory / name)
    assert await presented_serial(server, client) == before


async def test_no_connection_fails_while_the_certificate_is_renewed(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    seen: set[int] = set()

    async def connect_repeatedly() -> None:
        for _ in range(10):
            seen.add(await presented_serial(server, client))

    async def renew_repeatedly() -> None:
        for _ in range(10):
            await asyncio.to_thread(pki.issuer.issue_to, server.identity.directory, JOBMANAGER)
            await asyncio.to_thread(pki.issuer.issue_to, client.directory, TASKMANAGER)

    await asyncio.gather(connect_repeatedly(), connect_repeatedly(), renew_repeatedly())
    assert len(seen) > 1, "no renewal was seen while connecting"
    assert server.listener.refused == 0


async def test_a_listener_continues_when_its_identity_directory_is_deleted(
    pki: TestPki, start_server: StartServer
) -> None:
    """The identity in memory is complete; only a restart needs the files."""
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    before = await presented_serial(server, client)
    shutil.rmtree(server.identity.directory)
    assert await presented_serial(server, client) == before
    with pytest.raises(StoreError, match=r"key\.pem"):
        TlsIdentity(server.identity.directory)


async def test_client_contexts_are_cached_by_policy_and_alpn(pki: TestPki, start_server: StartServer) -> None:
    """A context made for one policy is never handed out for another."""
    server = await start_server()
    identity = server.identity
    rpc, blob = server_policy(Channel.RPC, TRUST_DOMAIN), server_policy(Channel.BLOB, TRUST_DOMAIN)
    assert identity.client_context(rpc) is identity.client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    assert identity.client_context(rpc) is not identity.client_context(blob)
    assert identity.client_context(rpc) is not identity.client_context(rpc, alpn=("h2",))
    await assert_refused(server.host, server.port, pki.process(Role.AUTH).client_context(rpc))
