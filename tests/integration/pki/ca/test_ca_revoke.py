"""Revocation on request of the auth service: only for it, only of known certificates, and at once."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, PeerRefused
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.server import REVOCATIONS_PER_IDENTITY
from sluice.pki.enrolment.client import revoke
from sluice.pki.errors import (
    CaUnavailable,
    CertificateUnknown,
    IssuanceRefused,
    RateLimited,
)
from sluice.pki.identities.directory import read_certificates
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import CRL_FILE
from sluice.pki.revocation.store import RevocationStore
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN, TestPki

WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


class Authority:
    """A running authority, the auth service's identity, and a TaskManager's in the home."""

    def __init__(self, pki: TestPki, address: CaAddress) -> None:
        self.pki = pki
        self.address = address
        self.auth = pki.process(Role.AUTH)
        self.worker = pki.home.identity(Role.TASKMANAGER, "tm-1")
        pki.issuer.issue_to(self.worker, WORKER)

    @property
    def serial(self) -> str:
        """The serial number of the TaskManager's certificate, in hexadecimal."""
        return f"{read_certificates(self.worker / 'chain.pem')[0].serial_number:x}"

    async def revoke(
        self,
        serial: str = "",
        reason: Reason = Reason.KEY_COMPROMISE,
        *,
        by: str = "ada",
        asks: TlsIdentity | None = None,
    ) -> tuple[str, bool]:
        """Request a revocation; return the revoked identity and whether the revocation is new."""
        answer = await asyncio.to_thread(
            revoke, asks or self.auth, self.address.mutual, serial or self.serial, reason, by
        )
        return answer.identity, answer.new

    def is_revoked(self, serial: str, kind: AuthorityKind = AuthorityKind.INTERNAL) -> bool:
        """Return whether the authority has recorded the revocation of ``serial``."""
        store = RevocationStore(self.pki.home.pki, self.pki.config, clock=utc_now)
        return store.is_revoked(kind, int(serial, 16))


@pytest.fixture
async def authority(tmp_path: Path) -> AsyncIterator[Authority]:
    pki = TestPki(tmp_path)
    async with online_ca(pki.home, pki.config, CaConfig()) as address:
        yield Authority(pki, address)


async def test_a_revoked_certificate_is_in_the_crl_that_processes_read(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    serial = authority.serial
    with caplog.at_level(logging.WARNING, logger="sluice.pki.ca.revoker"):
        assert await authority.revoke(by="ada\nrevoked nothing") == (str(WORKER), True)
    assert authority.is_revoked(serial)
    assert (authority.worker / CRL_FILE).read_bytes().startswith(b"-----BEGIN X509 CRL-----")
    assert await authority.revoke(serial) == (str(WORKER), False), "twice changes nothing"
    (line, _) = [each.getMessage() for each in caplog.records if each.name == "sluice.pki.ca.revoker"]
    assert f"revoked {WORKER}, serial {serial}, key-compromise: {authority.auth.spiffe_id}" in line
    assert "\n" not in line


async def test_only_the_auth_service_may_revoke_certificates(authority: Authority) -> None:
    for role in (Role.JOBMANAGER, Role.TASKMANAGER, Role.GATEWAY, Role.SHUFFLE_WORKER, Role.ZOOKEEPER):
        with pytest.raises(PeerRefused):
            await authority.revoke(asks=authority.pki.process(role))
    assert not authority.is_revoked(authority.serial)


async def test_a_certificate_kept_elsewhere_is_revoked_through_the_ledger_despite_a_damaged_identity(
    authority: Authority,
) -> None:
    serial = authority.serial
    shutil.rmtree(authority.worker)
    damaged = authority.pki.home.identity(Role.TASKMANAGER, "tm-2")
    authority.pki.issuer.issue_to(damaged, SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-2"))
    (damaged / "chain.pem").write_text("not a certificate")
    assert await authority.revoke(serial) == (str(WORKER), True)
    assert authority.is_revoked(serial)


async def test_an_unknown_serial_an_unsuitable_reason_and_the_own_certificate_are_not_revoked(
    authority: Authority,
) -> None:
    with pytest.raises(CertificateUnknown, match="no certificate with serial abcdef"):
        await authority.revoke("abcdef")
    with pytest.raises(CertificateRejected, match="this is not one"):
        await authority.revoke(reason=Reason.CA_COMPROMISE)
    own = read_certificates(authority.pki.home.identity(Role.CA, "ca-1") / "chain.pem")[0]
    with pytest.raises(IssuanceRefused, match="own certificate"):
        await authority.revoke(f"{own.serial_number:x}")
    for nonsense in ("ABC", "-1", "0x1", "1" * 41, "../../x"):
        with pytest.raises(CaUnavailable, match="400"):
            await authority.revoke(nonsense)
    assert not authority.is_revoked(authority.serial)


async def test_revocation_requests_are_rate_limited(authority: Authority) -> None:
    burst, _ = REVOCATIONS_PER_IDENTITY
    refusals: list[type[Exception]] = []
    while RateLimited not in refusals and len(refusals) < 2 * burst:  # a few more than the burst if it takes seconds
        with pytest.raises((CertificateUnknown, RateLimited)) as refused:
            await authority.revoke("abcdef")
        refusals.append(refused.type)
    assert refusals[-1] is RateLimited
    assert refusals[:burst] == [CertificateUnknown] * burst


async def test_a_revoked_auth_service_may_not_revoke_certificates(authority: Authority) -> None:
    own = f"{authority.auth.material.leaf.serial_number:x}"
    assert await authority.revoke(own) == (str(authority.auth.spiffe_id), True)
    assert await refused_within(20, authority), "the authority has the list within a second"
    with pytest.raises(CaUnavailable):
        await authority.revoke()
    assert not authority.is_revoked(authority.serial)


async def refused_within(seconds: float, authority: Authority) -> bool:
    """Return whether the authority refuses the auth service within ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            await authority.revoke("abcdef")
        except CertificateUnknown:
            await asyncio.sleep(0.2)
        except CaUnavailable:
            return True
    return False
