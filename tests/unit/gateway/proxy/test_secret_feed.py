"""Which certificates are given to Envoy as its own, and which never are."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import pytest

from sluice.core.errors import StoreError
from sluice.core.files import write_public
from sluice.core.xds.messages import to_json
from sluice.gateway.errors import EnvoyIdentityError
from sluice.gateway.proxy.secret_feed import Given, SecretFeed, Side
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind

NOW = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
GATEWAY = SpiffeId.process("test", Role.GATEWAY, "envoy")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> LocalIssuer:
    issuer = LocalIssuer(tmp_path_factory.mktemp("pki"), PkiConfig(trust_domain="test"), clock=lambda: NOW)
    issuer.ensure_authorities()
    return issuer


@pytest.fixture
def directory(issuer: LocalIssuer, tmp_path: Path) -> Path:
    issuer.issue_edge_server(tmp_path / "envoy", GATEWAY, dns=["localhost"])
    return tmp_path / "envoy"


def edge_feed(directory: Path, trust_domain: str = "test") -> SecretFeed:
    return SecretFeed(directory, Side.EDGE, trust_domain)


def test_the_chain_and_key_are_given_together_with_their_trust_anchors(directory: Path) -> None:
    given = edge_feed(directory).update(NOW)
    assert given is not None
    assert given.material.spiffe_id == GATEWAY
    assert given.secrets.keys() == {"edge", "edge-trust"}
    secret, trust = given.secrets["edge"], given.secrets["edge-trust"]
    assert trust.validation_context.trusted_ca.inline_bytes == (directory / "ca.pem").read_bytes()
    assert secret.tls_certificate.certificate_chain.inline_bytes == (directory / "chain.pem").read_bytes()
    assert secret.tls_certificate.private_key.inline_bytes == (directory / "key.pem").read_bytes()


def test_unchanged_pair_is_not_given_again(directory: Path, issuer: LocalIssuer) -> None:
    feed = edge_feed(directory)
    feed.update(NOW)
    assert feed.update(NOW) is None
    issuer.issue_edge_server(directory, GATEWAY, dns=["localhost"])
    assert feed.update(NOW) is not None


def test_a_mixed_pair_is_reported_once_and_accepted_when_the_other_half_arrives(
    directory: Path, issuer: LocalIssuer, tmp_path: Path
) -> None:
    feed = edge_feed(directory)
    feed.update(NOW)
    issuer.issue_edge_server(tmp_path / "next", GATEWAY, dns=["localhost"])
    write_public(directory / "chain.pem", (tmp_path / "next" / "chain.pem").read_bytes())
    with pytest.raises(StoreError, match="is not the key of"):
        feed.update(NOW)
    assert feed.update(NOW) is None
    (tmp_path / "next" / "key.pem").replace(directory / "key.pem")
    assert feed.update(NOW) is not None


@pytest.mark.parametrize("days", [-1, 400])
def test_pair_that_is_not_valid_now_is_refused(directory: Path, days: int) -> None:
    with pytest.raises(StoreError, match=r"expired|not valid before"):
        edge_feed(directory).update(NOW + dt.timedelta(days=days))


def test_pair_of_another_trust_domain_is_refused(directory: Path) -> None:
    with pytest.raises(EnvoyIdentityError, match="not of a gateway in elsewhere"):
        edge_feed(directory, "elsewhere").update(NOW)


def test_pair_of_another_role_is_refused(issuer: LocalIssuer, tmp_path: Path) -> None:
    issuer.issue_to(tmp_path / "jm", SpiffeId.process("test", Role.JOBMANAGER, "jm"), dns=["localhost"])
    with pytest.raises(EnvoyIdentityError, match="not of a gateway"):
        edge_feed(tmp_path / "jm").update(NOW)


def test_key_that_others_can_read_is_refused(directory: Path) -> None:
    (directory / "key.pem").chmod(0o644)
    with pytest.raises(StoreError, match="others can read"):
        edge_feed(directory).update(NOW)


@pytest.fixture
def inner(issuer: LocalIssuer, tmp_path: Path) -> Path:
    issuer.issue_to(tmp_path / "inner", GATEWAY)
    return tmp_path / "inner"


def trust_in(given: Given | None) -> dict[str, Any]:
    assert given is not None
    secret = given.secrets["internal-trust"]
    assert secret.name == "internal-trust"
    return to_json(secret.validation_context)


def inline(pem: bytes) -> dict[str, str]:
    return {"inline_bytes": base64.b64encode(pem).decode()}


def test_an_internal_identity_is_given_with_its_trust_anchors(inner: Path) -> None:
    given = internal_feed(inner).update(NOW)
    assert given is not None
    assert given.anchors == given.material.anchors
    assert trust_in(given) == {"trusted_ca": inline((inner / "ca.pem").read_bytes())}
    secret = given.secrets["internal"]
    assert secret.tls_certificate.certificate_chain.inline_bytes == (inner / "chain.pem").read_bytes()


def test_a_new_crl_is_given_without_a_new_certificate_and_checks_only_leaves(issuer: LocalIssuer, inner: Path) -> None:
    feed = internal_feed(inner)
    feed.update(NOW)
    pem = listed(issuer)
    install_crls(inner, pem, NOW)
    given = updated(feed)
    assert [each.pem for each in given.lists] == [pem]
    assert trust_in(given)["crl"] == inline(pem)
    assert trust_in(given)["only_verify_leaf_cert_crl"] is True


@pytest.mark.parametrize("damage", [b"", b"no list", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"])
def test_a_damaged_crl_is_not_given_to_envoy(issuer: LocalIssuer, inner: Path, damage: bytes) -> None:
    """Envoy would accept the damaged CRL, and then refuse every peer."""
    install_crls(inner, listed(issuer), NOW)
    feed = internal_feed(inner)
    feed.update(NOW)
    write_public(inner / "crl.pem", damage)
    assert feed.update(NOW) is None


def test_an_authority_without_a_crl_is_not_trusted_while_another_has_one(
    issuer: LocalIssuer, inner: Path, tmp_path: Path
) -> None:
    following = LocalIssuer(tmp_path / "next", PkiConfig(trust_domain="test"), clock=lambda: NOW)
    following.ensure_authorities()
    anchor = to_pem(AuthorityStore(tmp_path / "next").certificate(AuthorityKind.INTERNAL))
    first = (inner / "ca.pem").read_bytes()
    install_crls(inner, listed(issuer), NOW)
    write_public(inner / "ca.pem", first + anchor)
    feed = internal_feed(inner)
    given = updated(feed)
    assert to_pem(*given.anchors) == first
    assert trust_in(given)["trusted_ca"] == inline(first)
    install_crls(inner, listed(following), NOW)
    given = updated(feed)
    assert to_pem(*given.anchors) == first + anchor
    assert len(given.lists) == 2
    write_public(inner / "ca.pem", anchor)
    given = updated(feed)
    assert to_pem(*given.anchors) == anchor
    assert [each.pem for each in given.lists] == [listed(following)]


def test_public_and_internal_certificate_are_not_mistaken_for_each_other(directory: Path, inner: Path) -> None:
    with pytest.raises(EnvoyIdentityError, match="internal certificate"):
        edge_feed(inner).update(NOW)
    with pytest.raises(EnvoyIdentityError, match="public certificate"):
        internal_feed(directory).update(NOW)


def listed(issuer: LocalIssuer) -> bytes:
    """Return the issuer's CRL; sign one if there is none."""
    issuer.revocations.refresh(AuthorityKind.INTERNAL)
    current = issuer.revocations.current(AuthorityKind.INTERNAL)
    assert current is not None
    return current.pem


def internal_feed(directory: Path) -> SecretFeed:
    """Return an internal feed whose clock advances far enough between any two checks."""
    return SecretFeed(directory, Side.INTERNAL, "test", monotonic=itertools.count(0.0, 10.0).__next__)


def updated(feed: SecretFeed) -> Given:
    given = feed.update(NOW)
    assert given is not None
    return given


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        edge_feed(tmp_path / "none").update(NOW)
