"""Client certificates at the real Envoy.

Only users' certificates are accepted, and nobody can pretend to have one.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.gateway.credentials.revocations import Revocations
from sluice.pki.assertions.principal import CertificateId
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.integration.gateway.conftest import TRUST_DOMAIN, EdgeAuthority, Gateway, Reply, eventually

POLICY = b'version = 1\n[roles.viewer]\nallow = ["jobs.list"]\n[users]\nada = ["viewer"]\n'


@pytest.fixture
def with_policy(gateway: Gateway) -> Iterator[Gateway]:
    """A gateway with a policy in which the user ada is a viewer."""
    path = gateway.home.gateway / "policy.toml"
    path.write_bytes(POLICY)
    path.chmod(0o600)
    yield gateway
    path.unlink()


def certificate_of(pki: Path, directory: Path, identity: SpiffeId) -> Path:
    issuer = LocalIssuer(pki, PkiConfig(trust_domain=identity.trust_domain))
    issuer.ensure_authorities()
    issuer.issue_to(directory, identity)
    return directory


def ask(gateway: Gateway, directory: Path, *headers: str) -> Reply:
    context = gateway.tls()
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    lines = "".join(f"{header}\r\n" for header in headers)
    with gateway.connect(context) as connection:
        connection.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        return gateway.read(connection)


def test_a_user_certificate_is_a_credential_and_a_spoofed_header_is_not(
    with_policy: Gateway, edge_authority: EdgeAuthority, tmp_path: Path
) -> None:
    pki = edge_authority.certificate_file.parents[2]
    ada = certificate_of(pki, tmp_path / "ada", SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada"))
    eventually(lambda: ask(with_policy, ada).status == 200, "the policy counts")
    eve = certificate_of(pki, tmp_path / "eve", SpiffeId.process(TRUST_DOMAIN, Role.USER, "eve"))
    assert ask(with_policy, eve).status == 403
    # Whatever else is claimed, the certificate of the connection is what counts.
    claim = f"Hash={'0' * 64};URI=spiffe://{TRUST_DOMAIN}/user/ada"
    assert ask(with_policy, eve, f"X-Forwarded-Client-Cert: {claim}").status == 403
    assert with_policy.send("GET", "/v1/jobs", ("X-Forwarded-Client-Cert", claim)).status == 401


def test_a_revoked_user_certificate_is_refused_at_once_on_an_open_connection(
    with_policy: Gateway, edge_authority: EdgeAuthority, tmp_path: Path
) -> None:
    pki = edge_authority.certificate_file.parents[2]
    ada = certificate_of(pki, tmp_path / "ada", SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada"))
    context = with_policy.tls()
    context.load_cert_chain(ada / "chain.pem", ada / "key.pem")
    request = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with with_policy.connect(context) as connection:
        connection.sendall(request)
        assert with_policy.read(connection).status == 200
        leaf = x509.load_pem_x509_certificate((ada / "chain.pem").read_bytes())
        fingerprint = leaf.fingerprint(hashes.SHA256()).hex()
        Revocations.of(with_policy.home).revoke(("certificate", CertificateId(fingerprint)))
        # On the connection that is open already.
        connection.sendall(request)
        assert with_policy.read(connection).status == 401


@pytest.mark.parametrize("what", ["another authority", "another role", "a server's"])
def test_certificates_other_than_those_of_users_are_refused_in_the_handshake(
    gateway: Gateway, edge_authority: EdgeAuthority, tmp_path: Path, what: str
) -> None:
    own = edge_authority.certificate_file.parents[2]
    pki, role = (tmp_path / "pki", Role.USER) if what == "another authority" else (own, Role.TASKMANAGER)
    directory = gateway.identity
    if what != "a server's":
        directory = certificate_of(pki, tmp_path / "shown", SpiffeId.process(TRUST_DOMAIN, role, "ada"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(gateway, directory)
    assert gateway.reached() == []
