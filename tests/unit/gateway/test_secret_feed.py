"""What is given to Envoy as its certificate, and what never is."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import EnvoyIdentityError
from gateway.secret_feed import Given, SecretFeed
from gateway.upstreams import InternalSecrets
from pki.authority import to_pem
from pki.config import PkiConfig
from pki.crl_files import install_crls
from pki.errors import StoreError
from pki.files import write_public
from pki.identity import Role, SpiffeId
from pki.issuer import LocalIssuer
from pki.profiles import AuthorityKind
from pki.store import AuthorityStore

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


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "edge.json"


def test_chain_and_key_arrive_together_and_in_private(directory: Path, target: Path) -> None:
    given = SecretFeed.edge(directory, target, "test").update(NOW)
    assert given is not None
    assert given.material.spiffe_id == GATEWAY
    (secret,) = json.loads(target.read_bytes())["resources"]
    assert secret["name"] == "edge"
    assert secret["tls_certificate"]["certificate_chain"]["inline_string"] == (directory / "chain.pem").read_text()
    assert secret["tls_certificate"]["private_key"]["inline_string"] == (directory / "key.pem").read_text()
    assert target.stat().st_mode & 0o777 == 0o600


def test_unchanged_pair_is_not_given_again(directory: Path, target: Path, issuer: LocalIssuer) -> None:
    feed = SecretFeed.edge(directory, target, "test")
    feed.update(NOW)
    target.unlink()
    assert feed.update(NOW) is None
    assert not target.exists()
    issuer.issue_edge_server(directory, GATEWAY, dns=["localhost"])
    assert feed.update(NOW) is not None
    assert target.exists()


def test_mixed_pair_is_told_once_and_healed_by_the_other_half(
    directory: Path, target: Path, issuer: LocalIssuer, tmp_path: Path
) -> None:
    feed = SecretFeed.edge(directory, target, "test")
    feed.update(NOW)
    before = target.read_bytes()
    issuer.issue_edge_server(tmp_path / "next", GATEWAY, dns=["localhost"])
    write_public(directory / "chain.pem", (tmp_path / "next" / "chain.pem").read_bytes())
    with pytest.raises(StoreError, match="is not the key of"):
        feed.update(NOW)
    assert feed.update(NOW) is None
    assert target.read_bytes() == before
    (tmp_path / "next" / "key.pem").replace(directory / "key.pem")
    assert feed.update(NOW) is not None
    assert target.read_bytes() != before


@pytest.mark.parametrize("days", [-1, 400])
def test_pair_that_is_not_valid_now_is_refused(directory: Path, target: Path, days: int) -> None:
    with pytest.raises(StoreError, match=r"expired|not valid before"):
        SecretFeed.edge(directory, target, "test").update(NOW + dt.timedelta(days=days))
    assert not target.exists()


def test_pair_of_another_trust_domain_is_refused(directory: Path, target: Path) -> None:
    with pytest.raises(EnvoyIdentityError, match="not of a gateway in elsewhere"):
        SecretFeed.edge(directory, target, "elsewhere").update(NOW)
    assert not target.exists()


def test_pair_of_another_role_is_refused(issuer: LocalIssuer, tmp_path: Path, target: Path) -> None:
    issuer.issue_to(tmp_path / "jm", SpiffeId.process("test", Role.JOBMANAGER, "jm"), dns=["localhost"])
    with pytest.raises(EnvoyIdentityError, match="not of a gateway"):
        SecretFeed.edge(tmp_path / "jm", target, "test").update(NOW)
    assert not target.exists()


def test_key_that_others_can_read_is_refused(directory: Path, target: Path) -> None:
    (directory / "key.pem").chmod(0o644)
    with pytest.raises(StoreError, match="others can read"):
        SecretFeed.edge(directory, target, "test").update(NOW)
    assert not target.exists()


@pytest.fixture
def inner(issuer: LocalIssuer, tmp_path: Path) -> Path:
    issuer.issue_to(tmp_path / "inner", GATEWAY)
    return tmp_path / "inner"


@pytest.fixture
def targets(tmp_path: Path) -> InternalSecrets:
    return InternalSecrets(tmp_path / "internal.json", tmp_path / "internal-trust.json")


def trust_in(targets: InternalSecrets) -> dict[str, Any]:
    (secret,) = json.loads(targets.trust.read_bytes())["resources"]
    assert secret["name"] == "internal-trust"
    return dict(secret["validation_context"])


def test_internal_identity_comes_with_its_anchors(inner: Path, targets: InternalSecrets) -> None:
    given = internal_feed(inner, targets).update(NOW)
    assert given is not None
    assert given.anchors == given.material.anchors
    assert trust_in(targets) == {"trusted_ca": {"inline_string": (inner / "ca.pem").read_text()}}
    (secret,) = json.loads(targets.certificate.read_bytes())["resources"]
    assert secret["tls_certificate"]["certificate_chain"]["inline_string"] == (inner / "chain.pem").read_text()
    for path in (targets.certificate, targets.trust):
        assert path.stat().st_mode & 0o777 == 0o600


def test_list_arrives_alone_and_only_leaves_are_looked_up_in_it(
    issuer: LocalIssuer, inner: Path, targets: InternalSecrets
) -> None:
    feed = internal_feed(inner, targets)
    feed.update(NOW)
    targets.certificate.unlink()
    pem = listed(issuer)
    install_crls(inner, pem, NOW)
    given = updated(feed)
    assert [each.pem for each in given.lists] == [pem]
    assert trust_in(targets)["crl"] == {"inline_string": pem.decode()}
    assert trust_in(targets)["only_verify_leaf_cert_crl"] is True
    assert not targets.certificate.exists(), "the certificate did not change"


@pytest.mark.parametrize("damage", [b"", b"no list", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"])
def test_damaged_list_never_reaches_envoy(
    issuer: LocalIssuer, inner: Path, targets: InternalSecrets, damage: bytes
) -> None:
    """Envoy would take it, and then refuse everybody."""
    install_crls(inner, pem := listed(issuer), NOW)
    feed = internal_feed(inner, targets)
    feed.update(NOW)
    write_public(inner / "crl.pem", damage)
    assert feed.update(NOW) is None
    assert trust_in(targets)["crl"] == {"inline_string": pem.decode()}


def test_authority_without_a_list_waits_while_another_has_one(
    issuer: LocalIssuer, inner: Path, targets: InternalSecrets, tmp_path: Path
) -> None:
    following = LocalIssuer(tmp_path / "next", PkiConfig(trust_domain="test"), clock=lambda: NOW)
    following.ensure_authorities()
    anchor = to_pem(AuthorityStore(tmp_path / "next").certificate(AuthorityKind.INTERNAL))
    first = (inner / "ca.pem").read_bytes()
    install_crls(inner, listed(issuer), NOW)
    write_public(inner / "ca.pem", first + anchor)
    feed = internal_feed(inner, targets)
    given = updated(feed)
    assert to_pem(*given.anchors) == first
    assert trust_in(targets)["trusted_ca"]["inline_string"].encode() == first
    install_crls(inner, listed(following), NOW)
    given = updated(feed)
    assert to_pem(*given.anchors) == first + anchor
    assert len(given.lists) == 2
    write_public(inner / "ca.pem", anchor)
    given = updated(feed)
    assert to_pem(*given.anchors) == anchor
    assert [each.pem for each in given.lists] == [listed(following)]


def test_public_and_internal_certificate_are_not_mistaken_for_each_other(
    directory: Path, inner: Path, target: Path, targets: InternalSecrets
) -> None:
    with pytest.raises(EnvoyIdentityError, match="internal certificate"):
        SecretFeed.edge(inner, target, "test").update(NOW)
    with pytest.raises(EnvoyIdentityError, match="public certificate"):
        internal_feed(directory, targets).update(NOW)
    assert not any(path.exists() for path in (target, targets.certificate, targets.trust))


def test_withdrawn_secrets_are_gone(inner: Path, targets: InternalSecrets) -> None:
    feed = internal_feed(inner, targets)
    feed.update(NOW)
    feed.withdraw()
    feed.withdraw()
    assert not targets.certificate.exists()
    assert not targets.trust.exists()


def listed(issuer: LocalIssuer) -> bytes:
    """The issuer's revocation list, signed when there is none."""
    issuer.revocations.refresh(AuthorityKind.INTERNAL)
    current = issuer.revocations.current(AuthorityKind.INTERNAL)
    assert current is not None
    return current.pem


def internal_feed(directory: Path, targets: InternalSecrets) -> SecretFeed:
    """One for which enough time passes between any two looks."""
    return SecretFeed.internal(directory, targets, "test", monotonic=itertools.count(0.0, 10.0).__next__)


def updated(feed: SecretFeed) -> Given:
    given = feed.update(NOW)
    assert given is not None
    return given


def test_missing_directory_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        SecretFeed.edge(tmp_path / "none", target, "test").update(NOW)
