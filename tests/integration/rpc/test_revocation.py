"""A process revoked while connected: its stream ends, its calls fail, and it cannot reconnect."""

from __future__ import annotations

import asyncio

import pytest

from sluice.core.clock import utc_now
from sluice.core.errors import PeerRefused
from sluice.pki.identities.directory import read_certificates
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.rpc import PeerUnreachable, RpcError
from sluice.runtime.rpc.service import RpcService
from tests.hostile import TestPki
from tests.integration.rpc.world import Pair, taskmanager
from tests.waiting import until


def revoke(pki: TestPki, bad: RpcService, told: RpcService) -> None:
    """Revoke the identity of ``bad``, and tell only the process at the other end, ``told``."""
    leaf = read_certificates(bad.identity.directory / "chain.pem")[0]
    pki.issuer.revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget.of(leaf)], Reason.KEY_COMPROMISE)
    current = pki.issuer.revocations.current(AuthorityKind.INTERNAL)
    assert current is not None
    install_crls(told.identity.directory, current.pem, utc_now())


async def test_revoked_caller_loses_its_stream_and_its_pending_call(pair: Pair) -> None:
    other = await pair.world.service(taskmanager("tm-2")).connect(*pair.address)
    hanging = asyncio.ensure_future(pair.gateway.hang())
    await until(pair.echo.hanging.is_set)
    revoke(pair.world.pki, pair.client, pair.server)
    with pytest.raises(PeerUnreachable):
        await hanging
    await until(lambda: [peer.identity for peer in pair.server.peers()] == [taskmanager("tm-2")])
    with pytest.raises(PeerUnreachable):
        await pair.client.connect(*pair.address)
    assert not other.closed


async def test_a_caller_disconnects_from_a_revoked_server(pair: Pair) -> None:
    hanging = asyncio.ensure_future(pair.gateway.hang())
    await until(pair.echo.hanging.is_set)
    revoke(pair.world.pki, pair.server, pair.client)
    with pytest.raises(RpcError):
        await hanging
    assert pair.client.peers() == ()
    with pytest.raises(PeerRefused, match="was revoked"):
        await pair.client.connect(*pair.address)
