"""What is given to Envoy as its certificate, and what never is."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest

from gateway.errors import EnvoyIdentityError
from gateway.secret_feed import SecretFeed
from pki.config import PkiConfig
from pki.errors import StoreError
from pki.files import write_public
from pki.identity import Role, SpiffeId
from pki.issuer import LocalIssuer

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


def test_missing_directory_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        SecretFeed.edge(tmp_path / "none", target, "test").update(NOW)
