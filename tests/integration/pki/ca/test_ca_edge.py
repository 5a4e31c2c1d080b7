"""The gateway's public certificate from the online authority.

It is issued for a token of its own kind, and only its holder can renew it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, PkiError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.possession import prove_possession
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.protocol import EDGE_RENEW_PATH
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.enrolment.client import enrol, renew_edge
from sluice.pki.enrolment.exchange import mutual_context
from sluice.pki.errors import CaUnavailable, IssuanceRefused
from sluice.pki.identities.directory import IdentityMaterial, read_identity
from sluice.pki.identities.join_tokens import mint
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.keys import generate_key
from sluice.pki.x509.profiles import AuthorityKind, Purpose, purposes_of
from sluice.pki.x509.verification import was_issued_by
from tests.hostile import TRUST_DOMAIN, TestPki, assert_refused
from tests.integration.pki.ca.test_ca_server import call, off_loop
from tests.issued import issued_online

GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")
EDGE = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "edge")
NAMES = ["cluster.example.org"]
SAN = x509.SubjectAlternativeName.oid


@pytest.fixture
async def ca(pki: TestPki) -> AsyncIterator[CaAddress]:
    async with online_ca(pki.home, pki.config, CaConfig()) as address:
        yield address


def new_token(pki: TestPki, *, edge_server: bool = True) -> str:
    certificate = AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL)
    record, text = mint(EDGE, certificate, dns=NAMES, edge_server=edge_server, now=utc_now())
    TokenStore(pki.home.pki).add(record, now=utc_now())
    return text


def issued(pki: TestPki) -> list[str]:
    return [each.kind for each in issued_online(pki.home.pki)]


async def enrolled(pki: TestPki, ca: CaAddress, directory: Path, **options: Any) -> IdentityMaterial:
    await off_loop(
        enrol, directory, ca.enrolment, new_token(pki), Role.GATEWAY, "edge", dns=NAMES, edge_server=True, **options
    )
    return read_identity(directory)[0]


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "ed25519", "rsa-3072"])
async def test_the_edge_authority_signs_a_public_certificate_and_its_holder_renews_it(
    algorithm: str, pki: TestPki, ca: CaAddress, tmp_path: Path
) -> None:
    """For servers only, with exactly the token's names; Ed25519 becomes ECDSA because browsers reject it."""
    directory = tmp_path / "edge"
    first = await enrolled(pki, ca, directory, algorithm=algorithm)
    edge = AuthorityStore(pki.home.pki).certificate(AuthorityKind.EDGE)
    assert was_issued_by(first.leaf, edge)
    assert first.anchors == (edge,)
    assert purposes_of(first.leaf) == (Purpose.SERVER,)
    await off_loop(renew_edge, directory, pki.identity(GATEWAY), ca.mutual)
    second = read_identity(directory)[0]
    assert second.spiffe_id == EDGE
    assert second.key_pem != first.key_pem
    assert second.leaf.extensions.get_extension_for_oid(SAN) == first.leaf.extensions.get_extension_for_oid(SAN)
    assert issued(pki) == ["edge-enrolment", "edge-renewal"]


async def test_an_internal_or_edge_token_gives_no_certificate_of_the_other_kind(
    pki: TestPki, ca: CaAddress, tmp_path: Path
) -> None:
    """The answer to the wrong kind of token is not installed."""
    for edge_server in (True, False):
        token = new_token(pki, edge_server=edge_server)
        with pytest.raises(CaUnavailable, match="does not match the request"):
            await off_loop(
                enrol,
                tmp_path / "out",
                ca.enrolment,
                token,
                Role.GATEWAY,
                "edge",
                dns=NAMES,
                edge_server=not edge_server,
            )
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("spiffe_id", "dns"),
    [
        pytest.param(EDGE, [], id="no name"),
        pytest.param(SpiffeId.process(TRUST_DOMAIN, Role.AUTH, "auth-1"), NAMES, id="no gateway"),
        pytest.param(SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"), NAMES, id="a worker"),
    ],
)
def test_tokens_for_public_certificates_are_for_gateways_with_names(
    spiffe_id: SpiffeId, dns: list[str], pki: TestPki
) -> None:
    certificate = AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL)
    with pytest.raises(CertificateRejected):
        mint(spiffe_id, certificate, dns=dns, edge_server=True, now=utc_now())


async def test_the_mutual_tls_port_refuses_the_public_certificate(pki: TestPki, ca: CaAddress, tmp_path: Path) -> None:
    directory = tmp_path / "edge"
    await enrolled(pki, ca, directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    context.set_alpn_protocols(["http/1.1"])
    await assert_refused(*ca.mutual, context)


Forge = Callable[[TestPki, IdentityMaterial], dict[str, Any]]


def _request(material: IdentityMaterial, **changed: Any) -> dict[str, Any]:
    csr = changed.pop("csr", None) or new_csr(EDGE, dns=NAMES)[1]
    key = changed.pop("key", material.key)
    proven = changed.pop("proven", csr)
    honest = {
        "chain_pem": material.chain_pem.decode(),
        "csr_pem": csr.decode(),
        "proof": prove_possession(key, proven),
    }
    return honest | changed


def _internal_as_public(pki: TestPki, _: IdentityMaterial) -> dict[str, Any]:
    return _request(pki.identity(GATEWAY).material)


def _of_a_user(pki: TestPki, _: IdentityMaterial) -> dict[str, Any]:
    user = SpiffeId.process(TRUST_DOMAIN, Role.USER, "eve")
    material = read_identity(pki.directory(user))[0]
    return _request(material, csr=new_csr(user, dns=["localhost"], ips=["127.0.0.1"])[1])


@pytest.mark.parametrize(
    ("forge", "status"),
    [
        pytest.param(lambda _, own: _request(own), 201, id="honest"),
        pytest.param(lambda _, own: _request(own, key=generate_key("ecdsa-p256")), 403, id="proof of another key"),
        pytest.param(lambda _, own: _request(own, proven=b"x"), 403, id="proof of another request"),
        pytest.param(lambda _, own: _request(own, proof=b""), 403, id="no proof"),
        pytest.param(lambda _, own: _request(own, csr=new_csr(EDGE, dns=["bank.example"])[1]), 422, id="another name"),
        pytest.param(
            lambda _, own: _request(own, csr=new_csr(EDGE, dns=NAMES, algorithm="ed25519")[1]), 422, id="Ed25519"
        ),
        pytest.param(lambda _, own: _request(own, chain_pem="x"), 422, id="no certificate"),
        pytest.param(_internal_as_public, 422, id="an internal certificate"),
        pytest.param(_of_a_user, 422, id="a user's certificate"),
    ],
)
async def test_only_the_holder_of_a_public_certificate_can_renew_it(
    forge: Forge, status: int, pki: TestPki, ca: CaAddress, tmp_path: Path
) -> None:
    own = await enrolled(pki, ca, tmp_path / "edge")
    context = mutual_context(pki.identity(GATEWAY))
    body = msgspec.json.encode(forge(pki, own))
    answered, _ = await off_loop(call, ca.mutual, context, "POST", EDGE_RENEW_PATH, body)
    assert answered == status
    assert issued(pki) == ["edge-enrolment", *(["edge-renewal"] if status == 201 else [])]


@pytest.mark.parametrize("role", [Role.JOBMANAGER, Role.TASKMANAGER, Role.AUTH])
async def test_no_other_role_renews_a_public_certificate(
    role: Role, pki: TestPki, ca: CaAddress, tmp_path: Path
) -> None:
    await enrolled(pki, ca, tmp_path / "edge")
    with pytest.raises(IssuanceRefused, match="only a gateway"):
        await off_loop(renew_edge, tmp_path / "edge", pki.process(role), ca.mutual)


async def test_a_revoked_public_certificate_is_not_renewed(pki: TestPki, ca: CaAddress, tmp_path: Path) -> None:
    own = await enrolled(pki, ca, tmp_path / "edge")
    pki.issuer.revocations.revoke(AuthorityKind.EDGE, [RevocationTarget.of(own.leaf, str(EDGE))], Reason.SUPERSEDED)
    with pytest.raises(IssuanceRefused, match="revoked"):
        await off_loop(renew_edge, tmp_path / "edge", pki.identity(GATEWAY), ca.mutual)
    pki.issuer.revocations.revoke(
        AuthorityKind.EDGE, [RevocationTarget(12345, str(EDGE), own.leaf.not_valid_after_utc)], Reason.KEY_COMPROMISE
    )
    with pytest.raises(PkiError, match="was revoked"):
        await enrolled(pki, ca, tmp_path / "again")


async def test_a_missing_edge_authority_key_is_reported_and_the_token_stays_valid(
    pki: TestPki, ca: CaAddress, tmp_path: Path
) -> None:
    key = pki.home.pki / "authorities" / "edge" / "key.pem"
    elsewhere = await asyncio.to_thread(key.rename, tmp_path / "key.pem")
    token = new_token(pki)
    arguments = (tmp_path / "edge", ca.enrolment, token, Role.GATEWAY, "edge")
    with pytest.raises(IssuanceRefused, match="edge authority's key is not on the CA's machine"):
        await off_loop(enrol, *arguments, dns=NAMES, edge_server=True)
    await asyncio.to_thread(elsewhere.rename, key)
    await off_loop(enrol, *arguments, dns=NAMES, edge_server=True)
